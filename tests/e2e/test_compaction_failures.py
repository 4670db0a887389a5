"""Summaries that cannot be had, and contexts that no summary makes smaller: nothing is lost, nothing goes round in circles."""

import json
from typing import Any

import pytest

from app.domain.model import ApiMode
from app.simulator.log import RecordedRequest
from tests.e2e.chains import every_mode, problems
from tests.e2e.compacting import (
    LONG,
    MARK,
    SUMMARY,
    compact,
    compacting,
    compactions,
    grown,
    metrics_of,
    says,
    size_of,
    spoken,
    summaries_of,
)
from tests.e2e.harness import Client, Frame
from tests.e2e.stage import Stage

pytestmark = pytest.mark.asyncio(loop_scope="module")

FAULTS = {
    "an error": "status=500",
    "no money": "status=402",
    "nothing": "empty",
    "blanks": 'text="  \\n "',
    "a refusal": "text=\"I'm sorry, I can't help with that\"",
    "a refusal by name": 'refusal="No."',
    "an error's text": 'text="Error generating summary: rate limit"',
    "a call": 'calls=[{"name":"get_time"}]',
    "a filter": 'text="## Goal" finish=content_filter',
    "a dead connection": "hangup",
}
"""What the summariser does."""


async def until_due(client: Client, session: str) -> list[Frame]:
    """Plain turns until one of them had a compaction; returns its frames."""
    for number in range(30):
        frames = await client.run(session, f'{number} {LONG * 3}[[sim text="Answer {number}."]]')
        if compactions(frames):
            return frames
    raise AssertionError("the session was never compacted")


def messages_of(request: RecordedRequest) -> list[dict[str, Any]]:
    """The messages as sent, without cache markers."""
    messages: list[dict[str, Any]] = json.loads(spoken(request).replace(', "cache_control": {"type": "ephemeral"}', ""))["messages"]
    return messages


@pytest.mark.parametrize("fault", FAULTS.values(), ids=FAULTS)
async def test_a_summary_that_cannot_be_had_changes_nothing(stage: Stage, fault: str) -> None:
    """C042."""
    stage.backup.play(fault, says(SUMMARY))
    async with compacting(stage, window=16_000) as client:
        session = await client.session(toolsets=[])
        frames = await until_due(client, session)
        failed = [frame for frame in frames if frame.type.startswith("compaction.")]
        assert compactions(frames) == ["started gateway", "failed gateway"]
        assert failed[-1].data["message"]
        assert frames[-1].type == "turn.completed", "it still fits"
        assert len(stage.backup.requests) == 1
        before, sent = list(stage.provider.requests)[-2:]
        assert messages_of(sent)[: len(messages_of(before))] == messages_of(before)
        assert MARK not in spoken(sent)
        assert await summaries_of(client, session) == []
        assert len(await client.messages(session, view="context")) == len(await client.messages(session))
        # It cools down: the next turn does not ask again.
        small = await client.run(session, '[[sim text="Small."]]')
        assert (frames[-1].type, compactions(small), len(stage.backup.requests)) == ("turn.completed", [], 1)
        # A caller is not held back.
        asked = await compact(client, session)
        assert compactions(asked) == ["started manual", "completed manual"]
        assert asked[-1].data["output"] == SUMMARY
        assert problems(stage.provider) == []


@every_mode
async def test_what_does_not_fit_without_a_summary_is_a_typed_error_and_the_session_lives_on(stage: Stage, mode: ApiMode) -> None:
    stage.backup.play("status=500")
    async with compacting(stage, mode, window=16_000) as client:
        session = await client.session(toolsets=[])
        await until_due(client, session)
        sent = len(stage.provider.requests)
        frames = await client.run(session, f"NEWEST {LONG * 9}")
        assert (frames[-1].type, frames[-1].data["reason"]) == ("turn.failed", "context_exhausted")
        assert frames[-1].data["error"]["retryable"] is True
        assert len(stage.provider.requests) == sent
        small = await client.run(session, '[[sim text="Small."]]')
        assert small[-1].data["output"] == "Small."
        assert "NEWEST" not in spoken(stage.provider.requests[-1])
        stage.backup.play(says(SUMMARY))
        assert (await compact(client, session))[-1].type == "turn.completed"
        again = await client.run(session, f'NEWEST {LONG * 9}[[sim text="Done."]]')
        assert again[-1].data["output"] == "Done."
        assert problems(stage.provider) == []


async def test_after_two_failures_what_does_not_fit_is_cut_hard(stage: Stage) -> None:
    async with compacting(stage, window=16_000) as client:
        session = await client.session(toolsets=[])
        stage.backup.play(*['text="I cannot do that."'] * 2)
        await until_due(client, session)
        assert compactions(await compact(client, session)) == ["started manual", "failed manual"]
        frames = await client.run(session, f'NEWEST {LONG * 9}[[sim text="Done."]]')
        assert frames[-1].data.get("output") == "Done.", frames[-1].data
        (completed,) = [frame for frame in frames if frame.type == "compaction.completed"]
        assert completed.data["summary_id"] is None
        assert completed.data["archived_messages"] > 0
        assert "NEWEST" in spoken(stage.provider.requests[-1])
        assert size_of(stage.provider.requests[-1]) < 16_000
        assert problems(stage.provider) == []
        assert await summaries_of(client, session) == []
        assert [message["content"].split()[0] for message in await client.messages(session) if message["role"] == "user"][-1] == "NEWEST"
        metrics = await metrics_of(client)
        assert 'gateway_compactions_total{outcome="trimmed",reason="gateway"}' in metrics
        assert 'gateway_compactions_total{outcome="failed",reason="manual"}' in metrics


@every_mode
async def test_a_prompt_that_is_most_of_the_window_is_no_reason_to_summarise_for_ever(stage: Stage, mode: ApiMode) -> None:
    """C044: system prompt at 60 % of the window, half of it being the mark."""
    stage.backup.play(*[says(SUMMARY)] * 20)
    async with compacting(stage, mode, window=10_000, preflight_every_turn=True) as client:
        session = await client.session(toolsets=[], system_prompt="rule " * 4_800)
        frames = await grown(client, session, turns=10, text="plain ")
        assert compactions(frames).count("completed preflight") <= 2
        assert len(stage.backup.requests) <= 2
        asked = len(stage.backup.requests)
        # At 85 % it is cut hard, and what is left is valid.
        more = await grown(client, session, turns=14)
        assert set(compactions(more)) == {"completed gateway"}
        assert all(frame.data["summary_id"] is None for frame in more if frame.type == "compaction.completed")
        assert len(stage.backup.requests) == asked
        assert 8_000 < max(map(size_of, stage.provider.requests)) <= 8_600
        assert problems(stage.provider, stage.backup) == []
        # A prompt that leaves room again opens the latch.
        await client.http.patch(f"/sessions/{session}", json={"system_prompt": "Be kind."})
        opened = await grown(client, session, turns=24)
        assert "completed preflight" in compactions(opened)


async def test_a_prompt_that_leaves_no_room_is_a_typed_error(stage: Stage) -> None:
    async with compacting(stage) as client:
        session = await client.session(toolsets=[], system_prompt="rule " * 3_200)
        frames = await client.run(session, "hello")
        assert (frames[-1].type, frames[-1].data["reason"]) == ("turn.failed", "context_exhausted")
        assert len(stage.provider.requests) == len(stage.backup.requests) == 0


@every_mode
async def test_five_compactions_leave_one_summary_of_bounded_size(stage: Stage, mode: ApiMode) -> None:
    """C044."""
    huge = "## Goal\n" + "\n".join(f"- fact {number} {'f' * 60}" for number in range(400))
    async with compacting(stage, mode, window=8_000) as client:
        session = await client.session(toolsets=[])
        for number in range(5):
            await grown(client, session, turns=3)
            stage.backup.play(says(f"{huge}\n- round {number}") if number % 2 == 0 else says(f"## Goal\nround {number}"))
            frames = await compact(client, session)
            assert compactions(frames) == ["started manual", "completed manual"]
        await grown(client, session, turns=1)
        summaries = await summaries_of(client, session)
        sent = spoken(stage.provider.requests[-1])
    assert [summary["active"] for summary in summaries] == [True, False, False, False, False]
    assert all(len(summary["content"]) <= 8_000 * 4 // 8 for summary in summaries)
    assert sent.count("[End of Historical Summary]") == 1
    for number, request in enumerate(stage.backup.requests):
        before = f"round {number - 1}" if number % 2 == 0 else "fact 7 "
        assert number == 0 or before in spoken(request), "the summary before is folded in"
    assert problems(stage.provider, stage.backup) == []
