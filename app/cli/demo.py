"""``demo``: a few turns against a running gateway, their streams shown as a person would like to read them."""

import argparse
import json
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import httpx

from app.cli.databases import read_settings
from app.cli.demo_tenant import KEY_FILE, LOCAL_MODEL, SIMULATOR, DemoSettings, read_key
from app.cli.errors import FAILED, CommandError
from app.cli.reader import Reader
from app.cli.sse import TERMINAL, Event, events

URL = "http://127.0.0.1:8000"

_TIMEOUT = httpx.Timeout(10.0, read=120.0)
_SHOWN_BEFORE_STOP = 8
"""Deltas of the interrupted and of the reconnected turn before something happens to it."""


def add_demo(commands: "argparse._SubParsersAction[argparse.ArgumentParser]") -> None:
    """Add the command."""
    parser = commands.add_parser(
        "demo",
        help="post turns to a running gateway and show their streams (make demo)",
        description="Post turns to a running gateway and show their streams: a plain answer, one with tool calls, one interrupted, one "
        "reconnected half-way. The key is --key, else GATEWAY_DEMO_KEY, else the one kept in GATEWAY_DATA_DIR.",
    )
    parser.add_argument("--url", default=URL, help="address of the gateway (default %(default)s)")
    parser.add_argument("--key", help="an API key of a tenant")
    parser.set_defaults(run=_demo)


def _demo(arguments: argparse.Namespace) -> int:
    url = arguments.url.rstrip("/")
    headers = {"Authorization": f"Bearer {_key(arguments)}"}
    try:
        with httpx.Client(base_url=url, headers=headers, timeout=_TIMEOUT, trust_env=False) as client:
            return _Demo(client).run()
    except httpx.ConnectError:
        raise CommandError(f"No gateway answers at {url}: start it with `make run`, or name another with --url.") from None
    except (httpx.HTTPError, httpx.InvalidURL) as error:
        raise CommandError(f"The gateway at {url} broke off: {str(error) or type(error).__name__}") from None


def _key(arguments: argparse.Namespace) -> str:
    wanted = DemoSettings().demo_key
    file = read_settings().data_dir / KEY_FILE
    key = arguments.key or (wanted.get_secret_value() if wanted else None) or read_key(file)
    if not key:
        raise CommandError(f"There is no API key in {file}: start the gateway with `make run`, or give one with --key.")
    if not (key.isascii() and key.isprintable()):
        raise CommandError("The API key holds characters that no key has.")
    return key.strip()


class _Demo:
    """The four turns. ``provider`` is known once a turn has started."""

    def __init__(self, client: httpx.Client) -> None:
        self._client = client
        self._reader = Reader()
        self._provider = ""

    def run(self) -> int:
        good = [self._plain(), self._tools(), self._interrupted(), self._reconnected()]
        print()
        if all(good):
            print("All four turns ended as they should.")
            return 0
        print("Not every turn ended as it should: see above.")
        return FAILED

    def _plain(self) -> bool:
        self._heading(1, "A plain answer")
        session = self._session()
        with self._post(session, "What is an agent gateway? Answer in one sentence.") as stream:
            last = self._show(stream)
        return last is not None and last.type == "turn.completed"

    def _tools(self) -> bool:
        self._heading(2, "An answer with tool calls")
        script = (
            'calls=[{"name":"get_time","arguments":{"timezone":"Europe/Berlin"}},{"name":"todo","arguments":'
            '{"todos":[{"id":"1","content":"Call Ada","status":"pending"}]}}] '
            'preamble="Let me look." text="I have noted it, and looked at the clock."'
        )
        question = "What time is it in Berlin? Also put 'Call Ada' on the todo list."
        session = self._session(toolsets=["core"], **({} if self._provider == SIMULATOR else {"messages": EXAMPLES}))
        if self._provider == LOCAL_MODEL:
            question = "What time is it in Berlin?"
            self._reader.note("the session begins with two example exchanges: without them so small a model calls no tool (see README)")
        with self._post(session, question, script) as stream:
            last = self._show(stream)
        return last is not None and last.type == "turn.completed" and bool(self._reader.tools)

    def _interrupted(self) -> bool:
        self._heading(3, "An answer that is interrupted")
        session = self._session(toolsets=[])
        with self._post(session, "Tell me a long story about a lighthouse keeper.", "tokens=400 pace_ms=30") as stream:
            last = self._interrupt_after(stream)
        return last is not None and last.type == "turn.interrupted"

    def _interrupt_after(self, stream: Iterator[Event]) -> Event | None:
        deltas, last = 0, None
        for event in stream:
            self._reader.show(event)
            deltas += event.type == "message.delta"
            if deltas == _SHOWN_BEFORE_STOP:
                deltas += 1
                turn = event.data["turn_id"]
                answer = httpx.delete(
                    f"{self._client.base_url}/turns/{turn}", headers=self._client.headers, timeout=_TIMEOUT, trust_env=False
                )
                self._reader.note(f"DELETE /turns/{turn} from a second connection: {answer.status_code}")
            if event.type in TERMINAL:
                last = event
        return last

    def _reconnected(self) -> bool:
        self._heading(4, "A connection that breaks half-way")
        session = self._session(toolsets=[])
        seen: list[Event] = []
        with self._post(session, "Tell me about the sea in three sentences.", "tokens=60 pace_ms=30") as stream:
            for event in stream:
                self._reader.show(event)
                seen.append(event)
                if event.type in TERMINAL or sum(one.type == "message.delta" for one in seen) == _SHOWN_BEFORE_STOP:
                    break
        turn, after = seen[-1].data["turn_id"], seen[-1].seq
        self._reader.note(f"the connection is closed after event {after}; the turn goes on without us")
        self._reader.note(f"GET /turns/{turn}/events with Last-Event-ID: {after}")
        with self._follow(turn, after) as stream:
            for event in stream:
                self._reader.show(event)
                seen.append(event)
        with self._follow(turn, 0) as stream:
            replay = list(stream)
        same = seen == replay and seen[-1].type == "turn.completed"
        verdict = "the same" if same else "NOT the same"
        self._reader.note(f"{len(seen)} events over two connections; a replay of the whole turn has {len(replay)}, {verdict}")
        return same

    def _heading(self, number: int, text: str) -> None:
        print(f"\n{number}. {text}\n{'-' * (len(text) + 3)}")

    def _session(self, **body: Any) -> str:
        answer = self._client.post("/sessions", json=body)
        _check(answer)
        session: str = answer.json()["id"]
        return session

    @contextmanager
    def _post(self, session: str, question: str, script: str = "") -> Iterator[Iterator[Event]]:
        self._reader.begin(question)
        text = question
        if script and self._provider == SIMULATOR:
            text = f"{question} [[sim {script}]]"
            self._reader.note(f"the simulator is told what to do: [[sim {script}]]")
        with self._client.stream("POST", f"/sessions/{session}/turns", json={"input": text}) as response:
            _check(response)
            yield self._noticed(events(response))

    @contextmanager
    def _follow(self, turn: str, after: int) -> Iterator[Iterator[Event]]:
        with self._client.stream("GET", f"/turns/{turn}/events", headers={"Last-Event-ID": str(after)}) as response:
            _check(response)
            yield events(response)

    def _noticed(self, stream: Iterator[Event]) -> Iterator[Event]:
        for event in stream:
            if event.type == "turn.started":
                self._provider = event.data["route"]["provider"]
            yield event

    def _show(self, stream: Iterator[Event]) -> Event | None:
        last = None
        for event in stream:
            self._reader.show(event)
            if event.type in TERMINAL:
                last = event
        return last


def _check(response: httpx.Response) -> None:
    if response.is_success:
        return
    response.read()
    try:
        detail = str(response.json()["detail"])
    except (ValueError, KeyError, TypeError):
        detail = "this does not look like a gateway"
    raise CommandError(f"The gateway answered {response.status_code}: {detail}")


def _example(city: str, zone: str, time: str, number: int) -> list[dict[str, Any]]:
    call = {"id": f"call_{number}", "type": "function", "function": {"name": "get_time", "arguments": json.dumps({"timezone": zone})}}
    return [
        {"role": "user", "content": f"What time is it in {city}?"},
        {"role": "assistant", "content": "", "tool_calls": [call]},
        {"role": "tool", "tool_call_id": f"call_{number}", "content": json.dumps({"time": time, "timezone": zone})},
        {"role": "assistant", "content": f"In {city} it is {time[11:16]}."},
    ]


EXAMPLES = [
    *_example("Tokyo", "Asia/Tokyo", "2025-03-04T21:15:00+09:00", 1),
    *_example("London", "Europe/London", "2025-03-04T12:20:00+00:00", 2),
]
"""Two finished exchanges: with them in its history even a very small model calls the tool."""
