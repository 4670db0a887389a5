"""What stays in front of the model, and how large requests get: giants, other windows, long work on one task."""

import json
from typing import Any

import pytest

from app.domain.model import ApiMode
from app.simulator.log import RecordedRequest
from tests.e2e.chains import every_mode, problems
from tests.e2e.compacting import LONG, SUMMARY, compacting, compactions, grown, says, size_of, spoken
from tests.e2e.stage import Stage

pytestmark = pytest.mark.asyncio(loop_scope="module")

WINDOW = 8_000


def user_texts(request: RecordedRequest) -> list[str]:
    """The texts of a request's messages in the user's role, results of tools left out."""
    messages: list[dict[str, Any]] = request.body.get("messages") or request.body["input"]
    texts = []
    for message in messages:
        if message.get("role") != "user":
            continue
        content = message["content"]
        parts = [content] if isinstance(content, str) else [part["text"] for part in content if "text" in part]
        texts += ["\n".join(parts)] if parts else []
    return texts


@every_mode
async def test_a_giant_newest_result_is_cut_in_the_models_copy_alone(stage: Stage, mode: ApiMode) -> None:
    """C046 (1)."""
    stage.backup.play(*[says(SUMMARY)] * 9)
    async with compacting(stage, mode, window=WINDOW) as client:
        session = await client.session()
        await grown(client, session, turns=3)
        frames = await client.run(session, 'GIANT [[sim tool=giant args={"size":90000} rounds=3 text="Done."]]')
        assert frames[-1].data.get("output") == "Done.", frames[-1].data
        results = [message for message in await client.messages(session) if message["role"] == "tool"]
    assert [len(message["content"]) for message in results] == [90_000] * 3
    assert max(map(size_of, (*stage.provider.requests, *stage.backup.requests))) <= WINDOW
    assert {request.status for request in stage.provider.requests} == {200}
    assert problems(stage.provider, stage.backup) == []
    newest = spoken(stage.provider.requests[-1])
    assert "HEAD xxx" in newest
    assert "xxx TAIL" in newest


@every_mode
@pytest.mark.parametrize("many", [1, 12, 40])
async def test_giant_results_of_one_answer_fit_the_window_together(stage: Stage, mode: ApiMode, many: int) -> None:
    """However many there are: the exchange they belong to is the newest, so it can only be shown shorter."""
    calls = [{"name": "giant", "arguments": {"size": 100_000}}] * many
    stage.backup.play(*[says(SUMMARY)] * 9)
    async with compacting(stage, mode, window=WINDOW) as client:
        session = await client.session(toolsets=["operator"])
        await grown(client, session, turns=2)
        frames = await client.run(session, f'GIANT [[sim calls={json.dumps(calls)} text="Done."]]')
        assert frames[-1].data.get("output") == "Done.", frames[-1].data
        after = await client.run(session, 'And now? [[sim text="Still here."]]')
        assert after[-1].data["output"] == "Still here."
        results = [message for message in await client.messages(session) if message["role"] == "tool"]
    assert [len(message["content"]) for message in results] == [100_000] * many, "the transcript has all of it"
    assert max(map(size_of, (*stage.provider.requests, *stage.backup.requests))) <= WINDOW
    assert problems(stage.provider, stage.backup) == []
    with_results = spoken(stage.provider.requests[3])
    assert with_results.count("HEAD xxx") == with_results.count("xxx TAIL") == many
    assert with_results.count("left out here") == many


@every_mode
async def test_the_summariser_s_window_does_not_size_the_tail(stage: Stage, mode: ApiMode) -> None:
    """C046 (3): a summariser of a million tokens for a session of eight thousand; and one that is smaller than the session."""
    for summary_window in (1_000_000, 4_000):
        stage.reset()
        stage.backup.play(*[says(SUMMARY)] * 99)
        async with compacting(stage, mode, window=WINDOW, summary_window=summary_window) as client:
            session = await client.session(toolsets=[])
            frames = await grown(client, session, turns=45, text=LONG * 2)
        made = compactions(frames)
        assert made.count("completed gateway") >= 2
        assert "failed gateway" not in made
        assert max(map(size_of, stage.provider.requests)) <= WINDOW
        assert max(map(size_of, stage.backup.requests)) <= summary_window
        assert problems(stage.provider, stage.backup) == []
        pieces = len(stage.backup.requests) / made.count("completed gateway")
        assert pieces == 1 if summary_window > WINDOW else pieces > 1


@every_mode
async def test_the_task_is_never_summarised_away(stage: Stage, mode: ApiMode) -> None:
    """C048."""
    stage.backup.play(*[says(SUMMARY)] * 99)
    async with compacting(stage, mode, window=6_000) as client:
        session = await client.session()
        arguments = json.dumps({"size": 1_500})
        first = await client.run(session, f'TASK-7: do X [[sim tool=giant args={arguments} rounds=60 text="X is done."]]')
        assert first[-1].data.get("output") == "X is done.", first[-1].data
        half = len(stage.provider.requests)
        second = await client.run(session, f'stop X, do Y [[sim tool=giant args={arguments} rounds=30 text="Y is done."]]')
        assert second[-1].data.get("output") == "Y is done.", second[-1].data
        transcript = await client.messages(session)
    assert compactions(first).count("completed gateway") >= 2
    assert compactions(second).count("completed gateway") >= 1
    assert problems(stage.provider, stage.backup) == []
    for number, request in enumerate(stage.provider.requests):
        texts = user_texts(request)
        wanted = "TASK-7: do X" if number < half else "stop X, do Y"
        assert texts, number
        assert texts[-1].startswith(wanted) or f"\n\n{wanted}" in texts[-1] or f"\n{wanted}" in texts[-1], (number, texts[-1][:200])
        assert size_of(request) <= 6_000
        assert not any("Historical Summary" in text for text in texts)
    assert [message["role"] for message in transcript].count("user") == 2
    assert [message["role"] for message in transcript].count("tool") >= 90
    assert not any("counts upwards" in str(message["content"]) for message in transcript)


async def test_a_summariser_whose_window_is_too_small_for_anything_is_a_failure(stage: Stage) -> None:
    async with compacting(stage, window=4_000, summary_window=1_100) as client:
        session = await client.session(toolsets=[])
        frames = []
        for number in range(16):
            frames += await client.run(session, f'{number} {LONG}[[sim text="Answer {number}."]]')
    assert compactions(frames)[:2] == ["started gateway", "failed gateway"]
    assert len(stage.backup.requests) == 0
