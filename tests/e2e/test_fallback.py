"""Two routes: whatever the first one does, the second answers, and the client sees what happened. One route: a typed failure."""

import json
import socket
from collections.abc import Iterator
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass

import pytest

from app.simulator import RequestEnd
from app.simulator.server import Simulator
from tests.e2e.harness import Client, Frame, text_of, types
from tests.e2e.stage import Stage

DEADLINE_S = 0.5
TEXT = 'text="alpha beta gamma delta epsilon zeta" '


@dataclass(frozen=True, slots=True)
class Fault:
    """A script of the first provider, and what must be seen of it."""

    script: str
    reason: str
    status: int | None = None
    shown: bool = False
    tries: int = 1
    """Attempts on the first route: what often passes at once is tried once more there."""


FAULTS = {
    "401": Fault("status=401", "auth", 401),
    "402": Fault("status=402", "billing", 402),
    "403": Fault("status=403", "forbidden", 403),
    "404": Fault("status=404", "model_not_found", 404),
    "429": Fault("status=429", "rate_limit", 429),
    "429 without money": Fault("status=429 error_code=insufficient_quota", "billing", 429),
    "500": Fault("status=500", "server_error", 500, tries=2),
    "503": Fault("status=503", "overloaded", 503, tries=2),
    "html page": Fault("html_status=524", "server_error", 524, tries=2),
    "error as json": Fault("json_error", "server_error"),
    "hangup": Fault("hangup", "connection_broken", tries=2),
    "silent": Fault("silent", "first_token_timeout"),
    "headers, then nothing": Fault("stall_after=0", "first_token_timeout"),
    "comments only": Fault("comments_after=0 every_ms=20", "first_token_timeout"),
    "empty deltas only": Fault("empty_deltas_after=0 every_ms=20", "first_token_timeout"),
    "nothing said": Fault("empty", "invalid_response"),
    "nothing at all": Fault("cut_after=0", "invalid_response"),
    "stall": Fault(TEXT + "stall_after=3", "stale", shown=True),
    "comments": Fault(TEXT + "comments_after=3 every_ms=20", "stale", shown=True),
    "empty deltas": Fault(TEXT + "empty_deltas_after=3 every_ms=20", "stale", shown=True),
    "cut": Fault(TEXT + "cut_after=3", "incomplete_stream", shown=True),
    "drop": Fault(TEXT + "drop_after=3", "connection_broken", shown=True, tries=2),
    "reset": Fault(TEXT + "reset_after=3 pace_ms=5", "connection_broken", shown=True, tries=2),
    "garbage": Fault(TEXT + "garbage_after=3", "invalid_response", shown=True),
    "error object": Fault(TEXT + "error_after=3", "server_error", shown=True),
    "done without a finish": Fault(TEXT + "no_finish", "incomplete_stream", shown=True),
    "cut call": Fault('tool=get_time args={"timezone":"UTC"} chunk_args=6 cut_after=3', "incomplete_stream"),
}
every_fault = pytest.mark.parametrize("fault", FAULTS.values(), ids=FAULTS)


pytestmark = pytest.mark.asyncio(loop_scope="module")


@pytest.fixture
def provider(stage: Stage) -> Simulator:
    return stage.provider


@pytest.fixture
def backup(stage: Stage) -> Simulator:
    return stage.backup


def routes(stage: Stage, *urls: str, **route: object) -> AbstractAsyncContextManager[Client]:
    """A client of a tenant with one route for each URL, and short deadlines."""
    return stage.client(*urls, **{"first_token_timeout_s": DEADLINE_S, "stale_timeout_s": DEADLINE_S, **route})


def attempt_events(frames: list[Frame]) -> list[tuple[str, int]]:
    """Attempts as they ended, and resets, in order."""
    return [(frame.type, frame.data["attempt"]) for frame in frames if frame.type in ("attempt.failed", "attempt.reset")]


@every_fault
async def test_the_second_route_answers(stage: Stage, provider: Simulator, backup: Simulator, fault: Fault) -> None:
    async with routes(stage, provider.base_url, backup.base_url) as client:
        provider.play(*[fault.script] * fault.tries)
        session = await client.session()
        frames = await client.run(session, '[[sim text="The second speaks."]]')

        failed = [frame.data for frame in frames if frame.type == "attempt.failed"]
        assert [(event["reason"], event["status"], event["route"]["provider"]) for event in failed] == [
            (fault.reason, fault.status, "p1")
        ] * fault.tries
        assert [event["next_route"]["provider"] for event in failed] == ["p1"] * (fault.tries - 1) + ["p2"]
        assert {event["delay_s"] for event in failed} == {0.0}
        of_each = ("attempt.failed", "attempt.reset") if fault.shown else ("attempt.failed",)
        assert attempt_events(frames) == [(event_type, number + 1) for number in range(fault.tries) for event_type in of_each]
        switch = [frame.data for frame in frames if frame.type == "provider.fallback"]
        assert [(event["from_route"]["provider"], event["to_route"]["provider"], event["reason"]) for event in switch] == [
            ("p1", "p2", fault.reason)
        ]
        shown_before = [frame for frame in frames[: types_index(frames, "attempt.failed")] if frame.type == "message.delta"]
        assert bool(shown_before) == fault.shown
        assert {frame.data["attempt"] for frame in shown_before} <= {1}

        end = frames[-1]
        assert end.type == "turn.completed"
        assert end.data["output"] == text_of(frames) == "The second speaks."
        assert end.data["route"] == {"provider": "p2", "model": "sim-text", "api_mode": "chat_completions"}
        assert end.data["attempts"] == fault.tries + 1
        assert [message["content"] for message in await client.messages(session)][1:] == ["The second speaks."]

        for request in provider.requests:
            await provider.wait_for_end(request, 2.0)  # the first provider's socket is not kept open
        follow_up = await client.run(session, '[[sim text="And on."]]')
        assert follow_up[-1].data["output"] == "And on."
        answers = "p1" if fault.reason == "invalid_response" else "p2"
        assert follow_up[-1].data["route"]["provider"] == answers, "what failed is left alone for a while, unless it was only this answer"
        assert [request.problems for request in (*provider.requests, *backup.requests) if request.problems] == []


def types_index(frames: list[Frame], event_type: str) -> int:
    return next(place for place, frame in enumerate(frames) if frame.type == event_type)


REASONS = {"invalid_response": "invalid_response", "incomplete_stream": "invalid_response"}


@every_fault
async def test_a_single_route_fails_with_a_type_and_shows_nothing_as_success(stage: Stage, provider: Simulator, fault: Fault) -> None:
    async with routes(stage, provider.base_url, max_attempts=1) as client:
        provider.play(fault.script)
        session = await client.session()
        frames = await client.run(session)
        assert attempt_events(frames) == [("attempt.failed", 1)] + [("attempt.reset", 1)] * fault.shown
        failed = frames[types_index(frames, "attempt.failed")].data
        assert (failed["reason"], failed["next_route"]) == (fault.reason, None)
        end = frames[-1]
        assert end.type == "turn.failed"
        assert end.data["reason"] == REASONS.get(fault.reason, "provider_unavailable")
        assert end.data["error"]["code"] == end.data["reason"]
        assert (end.data["route"]["provider"], end.data["attempts"]) == ("p1", 1)
        assert end.data["error"]["turn_id"] == end.data["turn_id"]
        assert text_of(frames) == ""
        assert "<html" not in end.raw.decode()
        assert [message["role"] for message in await client.messages(session)] == ["user"]
        follow_up = await client.run(session, '[[sim text="And on."]]')
        assert follow_up[-1].data["output"] == "And on."
        assert [request.problems for request in provider.requests if request.problems] == []


@pytest.fixture
def closed_port() -> Iterator[int]:
    """A port on which nobody listens, kept by a socket that is bound to it."""
    with socket.socket() as holder:
        holder.bind(("127.0.0.1", 0))
        yield holder.getsockname()[1]


async def test_a_refused_connection_goes_to_the_second_route(stage: Stage, backup: Simulator, closed_port: int) -> None:
    async with routes(stage, f"http://127.0.0.1:{closed_port}/v1", backup.base_url) as client:
        session = await client.session()
        frames = await client.run(session, '[[sim text="The second speaks."]]')
        assert [frame.data["reason"] for frame in frames if frame.type == "attempt.failed"] == ["connect_failed"]
        assert frames[-1].data["output"] == "The second speaks."
        assert str(closed_port) not in "".join(frame.raw.decode() for frame in frames)


FATAL = {
    "bad request": ('status=400 error_message="temperature must be <= 2"', "invalid_request", "provider_unavailable"),
    "filtered": ("status=400 error_code=content_filter", "content_filtered", "content_filtered"),
}


@pytest.mark.parametrize(("script", "attempt_reason", "turn_reason"), FATAL.values(), ids=FATAL)
async def test_what_is_the_requests_own_fault_is_not_carried_to_the_second_route(
    stage: Stage, provider: Simulator, backup: Simulator, *, script: str, attempt_reason: str, turn_reason: str
) -> None:
    async with routes(stage, provider.base_url, backup.base_url) as client:
        provider.play(script)
        session = await client.session()
        frames = await client.run(session)
        assert [frame.data["reason"] for frame in frames if frame.type == "attempt.failed"] == [attempt_reason]
        assert frames[-1].data["reason"] == turn_reason
        assert not frames[-1].data["error"]["retryable"]
        assert len(provider.requests) == 1
        assert len(backup.requests) == 0


CUT = {
    "length": ("finish=length", "output_truncated", 4),  # it is continued three times
    "filter": ("finish=content_filter", "content_filtered", 1),
}


@pytest.mark.parametrize(("script", "reason", "calls"), CUT.values(), ids=CUT)
async def test_a_cut_answer_is_no_success(stage: Stage, provider: Simulator, *, script: str, reason: str, calls: int) -> None:
    async with routes(stage, provider.base_url) as client:
        provider.play(*[TEXT + script] * calls)
        session = await client.session()
        frames = await client.run(session)
        assert frames[-1].type == "turn.failed"
        assert frames[-1].data["reason"] == reason
        assert frames[-1].data["output"] == "alpha beta gamma delta epsilon zeta" * calls
        assert [message["role"] for message in await client.messages(session)] == ["user"]
        follow_up = await client.run(session, '[[sim text="And on."]]')
        assert follow_up[-1].data["output"] == "And on."


async def test_a_refusal_is_an_answer_of_its_own_kind(stage: Stage, provider: Simulator) -> None:
    async with routes(stage, provider.base_url) as client:
        provider.play('refusal="I will not do that."')
        session = await client.session()
        frames = await client.run(session)
        assert frames[-1].type == "turn.completed"
        assert frames[-1].data["reason"] == "refusal"
        assert frames[-1].data["output"] == text_of(frames) == "I will not do that."


async def test_slow_but_steady_content_meets_every_deadline(stage: Stage, provider: Simulator) -> None:
    async with routes(stage, provider.base_url) as client:
        provider.play("tokens=6 first_ms=150 pace_ms=100")
        session = await client.session()
        frames = await client.run(session)
        assert frames[-1].type == "turn.completed", "the whole took longer than either deadline, no gap did"
        assert types(frames).count("attempt.failed") == 0


async def test_the_fallback_keeps_the_calls_and_results_of_earlier_iterations(stage: Stage, provider: Simulator, backup: Simulator) -> None:
    async with routes(stage, provider.base_url, backup.base_url) as client:
        provider.play('calls=[{"name":"get_time","id":"c0"}]', TEXT + "cut_after=3")
        session = await client.session()
        frames = await client.run(session, '[[sim text="Late."]]')
        assert frames[-1].data["output"] == "Late."
        assert (frames[-1].data["attempts"], frames[-1].data["iterations"]) == (3, 2)
        assert [message["role"] for message in backup.requests[0].body["messages"]] == ["system", "user", "assistant", "tool"]
        assert [frame.data["iteration"] for frame in frames if frame.type == "iteration.started"] == [1, 2]
        assert attempt_events(frames) == [("attempt.failed", 2), ("attempt.reset", 2)]
        assert backup.requests[0].problems == ()


async def test_an_interrupt_during_the_wait_for_a_repeat_ends_the_turn_at_once(stage: Stage, provider: Simulator) -> None:
    async with routes(stage, provider.base_url) as client:
        provider.play("status=429 retry_after=30")
        session = await client.session()
        async with client.turn(session) as stream:
            failed = await stream.until("attempt.failed")
            assert failed.data["delay_s"] == 30.0
            assert (await client.http.delete(f"/turns/{failed.data['turn_id']}")).status_code in (200, 202)
            frames = await stream.read_to_end()
        assert frames[-1].type == "turn.interrupted"
        assert len(provider.requests) == 1


async def test_a_repeat_on_a_single_route_comes_when_the_provider_asked_for_it(stage: Stage, provider: Simulator) -> None:
    async with routes(stage, provider.base_url) as client:
        provider.play("status=429 header.retry-after-ms=300", 'text="Now."')
        session = await client.session()
        frames = await client.run(session)
        failed = frames[types_index(frames, "attempt.failed")].data
        assert (failed["delay_s"], failed["next_route"]["provider"]) == (0.3, "p1")
        assert frames[-1].data["output"] == "Now."
        first, second = provider.requests
        assert second.received_at - first.received_at >= 0.3


async def test_a_json_answer_carries_the_failure_and_its_turn(stage: Stage, provider: Simulator) -> None:
    async with routes(stage, provider.base_url, max_attempts=1) as client:
        provider.play(TEXT + "cut_after=3", "status=500")
        session = await client.session()
        seen = []
        for _ in range(2):
            response = await client.http.post(f"/sessions/{session}/turns", json={"input": "hi"}, headers={"Accept": "application/json"})
            problem = json.loads(response.content)
            assert response.headers["content-type"].startswith("application/problem+json")
            assert (await client.get(problem["turn_id"]))["status"] == "failed"
            seen.append((response.status_code, problem["code"]))
        assert seen == [(502, "invalid_response"), (503, "provider_unavailable")]


@pytest.mark.parametrize("script", ["silent", TEXT + "stall_after=3", "headers_ms=60000"])
async def test_an_interrupt_closes_the_providers_socket(stage: Stage, provider: Simulator, script: str) -> None:
    async with routes(stage, provider.base_url, first_token_timeout_s=30, stale_timeout_s=30) as client:
        provider.play(script)
        session = await client.session()
        async with client.turn(session) as stream:
            (request,) = await provider.wait_for_requests(1, 5.0)
            started = await stream.until("message.delta" if "stall" in script else "iteration.started")
            await client.http.delete(f"/turns/{started.data['turn_id']}")
            await provider.wait_for_end(request, 1.0)
            frames = await stream.read_to_end()
        assert request.ending is RequestEnd.CLIENT_CLOSED
        assert frames[-1].type == "turn.interrupted"
        follow_up = await client.run(session, '[[sim text="And on."]]')
        assert follow_up[-1].data["output"] == "And on."
        assert provider.requests[-1].problems == ()
