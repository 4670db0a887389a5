"""The Responses mode: reads requests, and writes streams and JSON answers as bytes. It keeps nothing, as with `store: false`."""

import time
from functools import lru_cache
from typing import Any, assert_never

import msgspec

from app.simulator.mode import RequestView
from app.simulator.openai_errors import error_object
from app.simulator.playback import SpokenBody, SpokenStream, fault_reply, only_content, stream_fault, stream_reply, whole_answer
from app.simulator.reply import Reply, chunk, whole_reply
from app.simulator.responses_events import RESPONSE_ID, event, output_of, tokens_as_events
from app.simulator.responses_rules import NOT_OURS, responses_problems
from app.simulator.script import ConnectionFault, ErrorText, HttpFault, Script, StreamFault, StreamFaultKind

_DONE = b"data: [DONE]\n\n"
_BYTES_PER_TOKEN = 4
_INCOMPLETE = {"length": "max_output_tokens", "content_filter": "content_filter"}


class Responses:
    """`POST /v1/responses`; the methods are those of the ApiMode protocol."""

    path = "/responses"

    def read(self, body: dict[str, Any], size_bytes: int) -> RequestView | None:
        """See ApiMode."""
        given = body.get("input")
        items = [{"role": "user", "content": given}] if isinstance(given, str) else given
        if not isinstance(items, list):
            return None
        newest = max((at for at, item in enumerate(items) if isinstance(item, dict) and item.get("role") == "user"), default=-1)
        return RequestView(
            model=body["model"] if isinstance(body.get("model"), str) else "",
            user_text=_text_of(items[newest].get("content")) if newest >= 0 else "",
            rounds_done=_rounds(items[newest + 1 :]),
            offers_tools=bool(body.get("tools")) and body.get("tool_choice") != "none",
            stream=body.get("stream") is True,
            include_usage=True,
            prompt_tokens=max(1, size_bytes // _BYTES_PER_TOKEN),
        )

    def problems(self, body: dict[str, Any], *, picky: bool) -> list[str]:
        """See ApiMode."""
        return responses_problems(body, picky=picky)

    def error(self, status: int, error: ErrorText) -> Reply:
        """See ApiMode. Reasoning that is not ours has a code of its own, which clients act on."""
        if error.message is not None and NOT_OURS in error.message:
            error = ErrorText(message=error.message, type=error.type, code="invalid_encrypted_content")
        return whole_reply(status, msgspec.json.encode(error_object(status, error)))

    def reply(self, script: Script, view: RequestView) -> Reply:
        """See ApiMode."""
        match script.fault:
            case None | StreamFault():
                if view.stream:
                    return stream_reply(script, _spoken_stream(script, view))
                return whole_answer(script, _spoken_body(script, view))
            case HttpFault() as fault:
                return fault_reply(script, fault, msgspec.json.encode(error_object(fault.status, fault.error)))
            case ConnectionFault() as fault:
                return fault_reply(script, fault, b"")
            case _:
                assert_never(script.fault)


def _text_of(content: object) -> str:
    if isinstance(content, str):
        return content
    if not isinstance(content, list):
        return ""
    texts = (part.get("text") for part in content if isinstance(part, dict) and part.get("type") == "input_text")
    return "\n".join(text for text in texts if isinstance(text, str))


def _rounds(items: list[Any]) -> int:
    """Count the rounds of calls: those that stand together, before their results, are one."""
    rounds = 0
    is_open = False
    for item in items:
        kind = item.get("type") if isinstance(item, dict) else None
        if kind == "function_call" and not is_open:
            rounds += 1
            is_open = True
        elif kind == "function_call_output":
            is_open = False
    return rounds


@lru_cache(maxsize=64)
def _token_chunks(script: Script, model: str) -> tuple[bytes, ...]:
    """Prepare the HTTP chunks of all tokens: the same for every request that gets this script."""
    return tuple(map(chunk, tokens_as_events(script, model)))


def _spoken_stream(script: Script, view: RequestView) -> SpokenStream:
    tokens = _token_chunks(only_content(script), view.model)
    begun = _response(view, "in_progress", [])
    ended = _ended(script, view, len(tokens))
    closing = event(f"response.{ended['status']}", response=ended)
    return SpokenStream(
        opening=chunk(event("response.created", response=begun) + event("response.in_progress", response=begun)),
        tokens=tokens,
        closing=chunk(_DONE if stream_fault(script) is StreamFaultKind.NO_FINISH else closing),
        empty=chunk(event("response.output_text.delta", item_id="msg_sim", output_index=0, content_index=0, delta="")),
        error=chunk(_error_event(script)),
    )


def _spoken_body(script: Script, view: RequestView) -> SpokenBody:
    tokens = len(_token_chunks(only_content(script), view.model))
    response = _ended(script, view, tokens)
    if stream_fault(script) is StreamFaultKind.NO_FINISH:
        response = {**response, "status": "in_progress"}
    error = error_object(500, _fault_error(script))
    return SpokenBody(body=msgspec.json.encode(response), tokens=tokens, error=msgspec.json.encode(error))


def _ended(script: Script, view: RequestView, tokens: int) -> dict[str, Any]:
    """Make the whole response."""
    reason = _INCOMPLETE.get(script.finish or "")
    given, made = script.usage or (view.prompt_tokens, tokens)
    return {
        **_response(view, "incomplete" if reason else "completed", output_of(script, view.model)),
        "incomplete_details": {"reason": reason} if reason else None,
        "usage": {
            "input_tokens": given,
            "input_tokens_details": {"cached_tokens": 0},
            "output_tokens": made,
            "output_tokens_details": {"reasoning_tokens": script.reasoning_tokens},
            "total_tokens": given + made,
        },
    }


def _response(view: RequestView, status: str, output: list[dict[str, Any]]) -> dict[str, Any]:
    return {
        "id": RESPONSE_ID,
        "object": "response",
        "created_at": int(time.time()),
        "status": status,
        "error": None,
        "incomplete_details": None,
        "instructions": None,
        "metadata": {},
        "model": view.model,
        "output": output,
        "parallel_tool_calls": True,
        "store": False,
        "tool_choice": "auto",
        "tools": [],
        "usage": None,
    }


def _fault_error(script: Script) -> ErrorText:
    return script.fault.error if isinstance(script.fault, StreamFault) else ErrorText()


def _error_event(script: Script) -> bytes:
    """In a stream the error object has no envelope, and no type of its own."""
    error = error_object(500, _fault_error(script))["error"]
    return event("error", code=error["code"], message=error["message"], param=None)
