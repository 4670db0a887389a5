"""Whatever the first route does, the caller gets a whole answer in time from a healthy one, in every API mode; or one clean error."""

from dataclasses import dataclass
from typing import Any

import pytest

from app.domain.model import ApiMode
from app.simulator import RawEnd, RawScript, RequestEnd, Script, raw_script
from tests.e2e.chains import DEADLINE_S, Link, chain, every_mode, failures, goes_on, pair, problems, run_as_json
from tests.e2e.harness import Frame, text_of, types
from tests.e2e.scenes import now
from tests.e2e.stage import Stage

pytestmark = pytest.mark.asyncio(loop_scope="module")

TEXT = 'text="alpha beta gamma delta epsilon zeta" usage=7/3 '
ANSWER = '[[sim text="A whole answer." usage=21/9]]'
OVERHEAD_S = 1.5
"""What may pass beside the deadlines on a busy machine."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Scenario:
    """What the first route does, request by request, and what becomes of it."""

    scripts: tuple[str | Script | RawScript, ...]
    failed: tuple[str, ...]
    """Reasons of the failed attempts, all on the first route."""
    answers: str = "p2"
    shown: bool = False
    deadline_s: float = 0.0
    at_least_s: float = 0.0


PREFILL = "This model does not support assistant message prefill. The conversation must end with a user message."
SCENARIOS = {
    "429, soon again": Scenario(
        scripts=("status=429 header.retry-after-ms=200",), failed=("rate_limit",), answers="p1", at_least_s=0.2, deadline_s=0.2
    ),
    "429, much later": Scenario(scripts=("status=429 retry_after=30",), failed=("rate_limit",)),
    "429 for ever": Scenario(
        scripts=("status=429 header.retry-after-ms=60",) * 9, failed=("rate_limit",) * 3, at_least_s=0.12, deadline_s=0.12
    ),
    "500 once": Scenario(scripts=("status=500",), failed=("server_error",), answers="p1"),
    "503 for ever": Scenario(scripts=("status=503",) * 9, failed=("overloaded",) * 2),
    "closed before headers": Scenario(scripts=("hangup",) * 9, failed=("connection_broken",) * 2),
    "reset behind headers": Scenario(scripts=(raw_script(b"", end=RawEnd.RESET),) * 9, failed=("connection_broken",) * 2),
    "no answer": Scenario(scripts=("silent",) * 9, failed=("first_token_timeout",), deadline_s=DEADLINE_S),
    "slow first token": Scenario(scripts=("first_ms=20000",) * 9, failed=("first_token_timeout",), deadline_s=DEADLINE_S),
    "slow headers": Scenario(scripts=("headers_ms=20000",) * 9, failed=("first_token_timeout",), deadline_s=DEADLINE_S),
    "cut": Scenario(scripts=(TEXT + "cut_after=3",) * 9, failed=("incomplete_stream",), shown=True),
    "stall": Scenario(scripts=(TEXT + "stall_after=3",) * 9, failed=("stale",), shown=True, deadline_s=DEADLINE_S),
    "stall behind pings": Scenario(
        scripts=(TEXT + "comments_after=3 every_ms=20",) * 9, failed=("stale",), shown=True, deadline_s=DEADLINE_S
    ),
    "malformed chunk": Scenario(scripts=(TEXT + "garbage_after=3",) * 9, failed=("invalid_response",), shown=True),
    "error in the stream": Scenario(scripts=(TEXT + "error_after=3 error_type=api_error",) * 9, failed=("server_error",), shown=True),
    "no terminal mark": Scenario(scripts=(TEXT + "no_finish",) * 9, failed=("incomplete_stream",), shown=True),
    "nothing said": Scenario(scripts=("empty",) * 9, failed=("invalid_response",)),
    "too long": Scenario(
        scripts=('status=400 error_message="prompt is too long: 210000 tokens > 200000 maximum"',) * 9, failed=("context_overflow",)
    ),
    "no prefill": Scenario(scripts=(f'status=400 error_message="{PREFILL}"',) * 9, failed=("unsupported",)),
}
every_scenario = pytest.mark.parametrize("scenario", SCENARIOS.values(), ids=SCENARIOS)


def check_use(end: dict[str, Any], scenario: Scenario) -> None:
    """Route, usage and cost of a turn's end are those of what really happened."""
    assert end["route"]["provider"] == scenario.answers
    uses = {use["route"]["provider"]: use for use in end["routes"]}
    asked_first = len(scenario.failed) + (scenario.answers == "p1")
    assert (uses["p1"]["attempts"], uses["p1"]["failed"]) == (asked_first, len(scenario.failed))
    answered = uses[scenario.answers]
    assert answered["usage"]["input_tokens"] >= 21
    assert answered["usage"]["output_tokens"] >= 9
    if scenario.answers == "p2":
        assert answered["usage"]["input_tokens"] == 21
        assert (answered["attempts"], answered["failed"]) == (1, 0)
    assert end["usage"]["input_tokens"] == sum(use["usage"]["input_tokens"] for use in end["routes"])
    assert end["usage"]["output_tokens"] == sum(use["usage"]["output_tokens"] for use in end["routes"])
    assert end["attempts"] == len(scenario.failed) + 1


def check_order(frames: list[Frame], scenario: Scenario) -> None:
    """Half an answer is taken back before the next one begins, and the switch of routes is told."""
    assert failures(frames) == [("p1", reason) for reason in scenario.failed]
    names = types(frames)
    assert names.count("attempt.reset") == scenario.shown * len(scenario.failed)
    if scenario.shown:
        assert names.index("message.delta") < names.index("attempt.failed") < names.index("attempt.reset")
    switches = [frame.data for frame in frames if frame.type == "provider.fallback"]
    assert [(switch["from_route"]["provider"], switch["to_route"]["provider"]) for switch in switches] == (
        [("p1", "p2")] if scenario.answers == "p2" else []
    )


@every_mode
@every_scenario
async def test_the_caller_gets_a_whole_answer(stage: Stage, mode: ApiMode, scenario: Scenario) -> None:
    provider, backup = stage.provider, stage.backup
    async with pair(stage, mode) as client:
        provider.play(*scenario.scripts)
        session = await client.session()
        since = now()
        frames = await client.run(session, ANSWER)
        took_s = now() - since

        end = frames[-1]
        assert end.type == "turn.completed", end.data
        assert end.data["output"] == text_of(frames) == "A whole answer."
        check_order(frames, scenario)
        check_use(end.data, scenario)
        assert scenario.at_least_s <= took_s < scenario.deadline_s + OVERHEAD_S
        assert len(provider.requests) == len(scenario.failed) + (scenario.answers == "p1"), "no tight loop"
        assert len(backup.requests) == (scenario.answers == "p2")
        assert [message["content"] for message in await client.messages(session)][1:] == ["A whole answer."]
        for request in provider.requests:
            await provider.wait_for_end(request, 1.0)
        provider.clear()
        await goes_on(client, session, provider, backup)


@every_scenario
async def test_a_json_answer_is_whole_as_well(stage: Stage, scenario: Scenario) -> None:
    async with pair(stage, ApiMode.CHAT_COMPLETIONS) as client:
        stage.provider.play(*scenario.scripts)
        session = await client.session()
        status, turn = await run_as_json(client, session, ANSWER)
        assert status == 200
        assert (turn["status"], turn["output"]) == ("completed", "A whole answer.")
        check_use(turn, scenario)
        stage.provider.clear()
        await goes_on(client, session, stage.provider, stage.backup)


@every_mode
async def test_a_first_token_just_in_time_is_waited_for(stage: Stage, mode: ApiMode) -> None:
    async with pair(stage, mode) as client:
        stage.provider.play("tokens=5 first_ms=150 pace_ms=80")
        frames = await client.run(await client.session())
        assert frames[-1].type == "turn.completed"
        assert failures(frames) == []
        assert frames[-1].data["route"]["provider"] == "p1"
        assert len(stage.backup.requests) == 0


OWN_FAULTS = {
    "filtered": (
        'status=400 error_message="The response was filtered by our content policy"',
        *("content_filtered", "content_filtered", "content_filtered"),
    ),
    "bad request": ('status=400 error_message="top_k must be positive"', "invalid_request", "provider_unavailable", "request_refused"),
}


@every_mode
@pytest.mark.parametrize(("script", "attempt_reason", "turn_reason", "code"), OWN_FAULTS.values(), ids=OWN_FAULTS)
async def test_the_requests_own_fault_is_one_clean_error_after_one_attempt(
    stage: Stage, mode: ApiMode, *, script: str, attempt_reason: str, turn_reason: str, code: str
) -> None:
    provider, backup = stage.provider, stage.backup
    async with pair(stage, mode) as client:
        for as_json in (False, True):
            provider.play(script)
            session = await client.session()
            if as_json:
                status, problem = await run_as_json(client, session, "hello")
                assert status >= 400
                assert problem["code"] == code
                assert (await client.get(problem["turn_id"]))["status"] == "failed"
            else:
                frames = await client.run(session)
                assert failures(frames) == [("p1", attempt_reason)]
                assert (frames[-1].type, frames[-1].data["reason"]) == ("turn.failed", turn_reason)
                assert frames[-1].data["error"]["retryable"] is False
                assert text_of(frames) == ""
            assert [message["role"] for message in await client.messages(session)] == ["user"]
            await goes_on(client, session, provider, backup)
        assert len(provider.requests) == 4
        assert len(backup.requests) == 0, "nobody else is asked"


@every_mode
async def test_an_answer_that_the_filter_cuts_is_no_success(stage: Stage, mode: ApiMode) -> None:
    provider, backup = stage.provider, stage.backup
    async with pair(stage, mode) as client:
        provider.play(TEXT + "finish=content_filter")
        session = await client.session()
        frames = await client.run(session)
        end = frames[-1]
        assert (end.type, end.data["reason"]) == ("turn.failed", "content_filtered")
        assert (len(provider.requests), len(backup.requests)) == (1, 0)
        assert end.data["usage"]["input_tokens"] == 7, "it is paid for"
        await goes_on(client, session, provider, backup)


@every_mode
async def test_when_every_route_fails_the_turn_ends_with_one_typed_error(stage: Stage, mode: ApiMode) -> None:
    provider, backup = stage.provider, stage.backup
    async with pair(stage, mode, max_attempts=1) as client:
        provider.play("html_status=524")
        backup.play(TEXT + "cut_after=3")
        session = await client.session()
        frames = await client.run(session)
        assert failures(frames) == [("p1", "server_error"), ("p2", "incomplete_stream")]
        assert [frame.type for frame in frames].count("turn.failed") == 1
        assert frames[-1].data["output"] == text_of(frames) == ""
        assert b"Ray ID" not in b"".join(frame.raw for frame in frames)
        assert [message["role"] for message in await client.messages(session)] == ["user"]
        assert (len(provider.requests), len(backup.requests)) == (1, 1)
        assert problems(provider, backup) == []
        await goes_on(client, session, provider, backup)


@every_mode
async def test_the_socket_of_an_attempt_that_was_given_up_is_closed(stage: Stage, mode: ApiMode) -> None:
    async with pair(stage, mode) as client:
        stage.provider.play(TEXT + "stall_after=3")
        frames = await client.run(await client.session(), ANSWER)
        assert frames[-1].type == "turn.completed"
        (request,) = stage.provider.requests
        await stage.provider.wait_for_end(request, 1.0)
        assert request.ending is RequestEnd.CLIENT_CLOSED


async def test_a_silent_route_costs_its_deadline_once_and_is_then_left_alone(stage: Stage) -> None:
    silent = Link(url=stage.provider.base_url, model="sim:silent")
    async with chain(stage, silent, Link(url=stage.backup.base_url, model="sim-echo")) as client:
        took_s = []
        for _ in range(5):
            since = now()
            frames = await client.run(await client.session(), "say this")
            took_s.append(now() - since)
            assert frames[-1].data["output"] == "say this"
        assert took_s[0] >= DEADLINE_S
        assert all(one < OVERHEAD_S for one in took_s[1:])
        assert len(stage.provider.requests) == 1
