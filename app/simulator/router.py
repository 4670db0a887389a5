"""Decides what a request gets: an answer of an API mode, or of the simulator's own pages."""

from collections.abc import Sequence
from dataclasses import asdict
from typing import Any
from urllib.parse import parse_qs

import msgspec

from app.simulator.choice import ScriptChooser
from app.simulator.connection import Answer, HttpRequest
from app.simulator.fields import script_from_json
from app.simulator.log import RecordedRequest, RequestLog
from app.simulator.mode import ApiMode, RequestView
from app.simulator.reply import Reply, json_reply, raw_reply
from app.simulator.script import ErrorText, RawScript, Script, ScriptError

MODELS = ("sim", "sim-echo", "sim-text")
_PREFIX = "/v1"
_OWN_PAGES = frozenset({"/livez", "/v1/models", "/_simulator/requests", "/_simulator/scripts"})


class Router:
    """Answers every request; knows the API modes it was given by their paths."""

    def __init__(
        self, modes: Sequence[ApiMode], log: RequestLog, chooser: ScriptChooser, *, strict: bool, picky: bool, unique: str
    ) -> None:
        self._modes = {_PREFIX + mode.path: mode for mode in modes}
        self._log = log
        self._chooser = chooser
        self._strict = strict or picky
        self._picky = picky
        self._unique = unique

    def answer(self, request: HttpRequest) -> Answer:
        """Answer a request; all but the simulator's own pages are recorded."""
        path, _, query = request.target.partition("?")
        if path in _OWN_PAGES:
            return Answer(reply=self._own_page(request, path, query), unique=self._unique_name(0))
        record = RecordedRequest(
            number=self._log.next_number(),
            received_at=request.received_at,
            method=request.method,
            path=path,
            headers=request.headers,
            raw=request.body,
            body=_parsed(request.body),
        )
        reply = self._provider_reply(record, self._modes.get(path), len(request.body))
        record.status = reply.status
        self._log.add(record)
        return Answer(reply=reply, unique=self._unique_name(record.number), record=record)

    def _provider_reply(self, record: RecordedRequest, mode: ApiMode | None, size_bytes: int) -> Reply:
        if mode is None:
            return _not_found(record.path)
        if record.method != "POST":
            return mode.error(405, ErrorText(message="this endpoint takes POST", code="method_not_allowed", type="invalid_request_error"))
        view = mode.read(record.body, size_bytes) if isinstance(record.body, dict) else None
        if view is None:
            return _refusal(mode, "the body is not JSON, or no request of this endpoint")
        try:
            script = self._chooser.choose(view)
        except ScriptError as error:
            return _refusal(mode, f"simulator: {error}")
        return self._scripted_reply(record, mode, view, script)

    def _scripted_reply(self, record: RecordedRequest, mode: ApiMode, view: RequestView, script: Script | RawScript) -> Reply:
        picky = self._picky or (isinstance(script, Script) and script.picky)
        if picky or self._strict or (isinstance(script, Script) and script.strict):
            record.problems = tuple(mode.problems(record.body, picky=picky))
        if record.problems:
            return _refusal(mode, "; ".join(record.problems))
        return raw_reply(script) if isinstance(script, RawScript) else mode.reply(script, view)

    def _own_page(self, request: HttpRequest, path: str, query: str) -> Reply:
        match request.method, path:
            case "GET", "/livez":
                return json_reply(200, {"status": "ok"})
            case "GET", "/v1/models":
                models = [{"id": name, "object": "model", "created": 0, "owned_by": "simulator"} for name in MODELS]
                return json_reply(200, {"object": "list", "data": models})
            case "GET", "/_simulator/requests":
                return self._requests_page(query)
            case "DELETE", "/_simulator/requests":
                self._chooser.clear()
                return json_reply(200, {"cleared": self._log.clear()})
            case "POST", "/_simulator/scripts":
                return self._enqueue(request.body)
            case _:
                return _plain_error(405, f"{request.method} is not allowed here")

    def _requests_page(self, query: str) -> Reply:
        after = parse_qs(query).get("after", ["0"])[0]
        if not (after.isascii() and after.isdigit()):
            return _plain_error(400, "after must be a number")
        return json_reply(200, {"requests": [_shown(record) for record in self._log.after(int(after))]})

    def _enqueue(self, body: bytes) -> Reply:
        value = _parsed(body)
        if not isinstance(value, dict) or not isinstance(value.get("scripts"), list):
            return _plain_error(400, 'the body must be {"scripts": [...]}')
        try:
            scripts = [script_from_json(item) for item in value["scripts"]]
        except ScriptError as error:
            return _plain_error(400, str(error))
        return json_reply(200, {"queued": self._chooser.enqueue(scripts)})

    def _unique_name(self, number: int) -> bytes:
        return f"{self._unique}{number:07d}".encode()


def _shown(record: RecordedRequest) -> dict[str, Any]:
    fields = asdict(record)
    del fields["raw"]  # the parsed body says the same
    return fields


def _parsed(body: bytes) -> Any:
    try:
        return msgspec.json.decode(body)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return None


def _refusal(mode: ApiMode, message: str) -> Reply:
    return mode.error(400, ErrorText(message=message, code="invalid_request", type="invalid_request_error"))


def _not_found(path: str) -> Reply:
    return _plain_error(404, f"no such path: {path}")


def _plain_error(status: int, message: str) -> Reply:
    return json_reply(status, {"error": {"message": message, "type": "invalid_request_error", "param": None, "code": None}})
