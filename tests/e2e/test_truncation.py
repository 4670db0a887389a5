"""Replies cut at the output limit, over the real gateway: text goes on, calls are asked for again, nothing runs that was cut."""

import json
from typing import Any

import pytest

from app.domain.model import ApiMode
from tests.e2e.chains import every_mode, goes_on, problems
from tests.e2e.harness import Client, Frame
from tests.e2e.operator_tools import runs
from tests.e2e.prefix import prefix_breaks
from tests.e2e.scenes import now, of_type
from tests.e2e.stage import Stage
from tests.e2e.steady import steady

pytestmark = pytest.mark.asyncio(loop_scope="module")

LIMITS = {ApiMode.CHAT_COMPLETIONS: "max_tokens", ApiMode.RESPONSES: "max_output_tokens", ApiMode.ANTHROPIC_MESSAGES: "max_tokens"}
SAVE = 'tool=save args={"path":"a","text":"long"}'
CUT_SAVE = f"{SAVE} finish=length"
BETWEEN = "Continue exactly where it stopped"


def cut(text: str) -> str:
    return f"text={json.dumps(text)} finish=length"


def said(text: str) -> str:
    return f"text={json.dumps(text)}"


async def spoken(client: Client, session: str) -> list[tuple[str, str]]:
    return [(message["role"], message["content"]) for message in await client.messages(session)]


def completed(frames: list[Frame]) -> list[str]:
    return [frame.data["message"]["content"] for frame in of_type(frames, "message.completed")]


@every_mode
async def test_cut_text_is_one_answer_to_people_and_parts_to_the_model(stage: Stage, mode: ApiMode) -> None:
    provider = stage.provider
    async with steady(stage, mode) as client:
        session = await client.session()
        provider.play(cut("One, "), cut("two, "), said("three."))
        frames = await client.run(session, "Count.")
        assert (frames[-1].data["reason"], frames[-1].data["output"]) == ("answer", "One, two, three.")
        assert completed(frames) == ["One, two, three."]
        assert frames[-1].data["iterations"] == 3
        assert await spoken(client, session) == [("user", "Count."), ("assistant", "One, two, three.")]
        shown = await client.messages(session, view="context")
        assert [message["content"] for message in shown if message["role"] == "assistant"] == ["One, ", "two, ", "three."]
        assert BETWEEN in provider.requests[1].raw.decode()
        await goes_on(client, session, provider)
        assert prefix_breaks(provider.requests) == []


@every_mode
async def test_the_fourth_cut_fails_with_the_whole_text(stage: Stage, mode: ApiMode) -> None:
    provider = stage.provider
    async with steady(stage, mode) as client:
        session = await client.session()
        provider.play(cut("One, "), cut("two, "), cut("three, "), cut("four"), said("Never said."))
        frames = await client.run(session, "Count.")
        assert (frames[-1].type, frames[-1].data["reason"]) == ("turn.failed", "output_truncated")
        assert frames[-1].data["output"] == "One, two, three, four"
        assert len(provider.requests) == 4
        provider.clear()
        await goes_on(client, session, provider)


@every_mode
async def test_a_cut_call_does_not_run_and_is_asked_for_again(stage: Stage, mode: ApiMode) -> None:
    """The arguments of what was cut may be readable (C016): it is not run all the same, and it is paid for."""
    provider = stage.provider
    async with steady(stage, mode, output_tokens=100, max_output_tokens=1_000) as client:
        session = await client.session()
        provider.play(f"{CUT_SAVE} usage=9/64", f"{CUT_SAVE} usage=9/64", SAVE, said("Saved."))
        frames = await client.run(session, "Save it.")
        assert frames[-1].data["output"] == "Saved."
        assert runs.saved == [("a", "long")]
        assert [request.body[LIMITS[mode]] for request in provider.requests] == [100, 200, 400, 100]
        assert [frame.data["attempt"] for frame in of_type(frames, "attempt.reset")] == [1, 2]
        assert frames[-1].data["usage"]["output_tokens"] > 128
        assert frames[-1].data["iterations"] == 4
        assert problems(provider) == []
        assert [role for role, _ in await spoken(client, session)] == ["user", "assistant", "tool", "assistant"]
        await goes_on(client, session, provider)
        assert prefix_breaks(provider.requests) == []


@every_mode
async def test_a_call_that_is_cut_at_the_largest_limit_fails(stage: Stage, mode: ApiMode) -> None:
    provider = stage.provider
    async with steady(stage, mode, output_tokens=100, max_output_tokens=300) as client:
        session = await client.session()
        provider.play(*[CUT_SAVE] * 8)
        frames = await client.run(session, "Save it.")
        assert [request.body[LIMITS[mode]] for request in provider.requests] == [100, 200, 300]
        assert (frames[-1].type, frames[-1].data["reason"]) == ("turn.failed", "output_truncated")
        assert runs.saved == []
        provider.clear()
        await goes_on(client, session, provider)


@every_mode
async def test_reasoning_that_ate_the_output_is_asked_for_again(stage: Stage, mode: ApiMode) -> None:
    provider = stage.provider
    async with steady(stage, mode, output_tokens=100) as client:
        session = await client.session()
        provider.play('reasoning=20 text="" finish=length', 'reasoning=2 text="Four."')
        frames = await client.run(session, "Two and two?")
        assert frames[-1].data["output"] == "Four."
        assert [request.body[LIMITS[mode]] for request in provider.requests] == [100, 200]
        await goes_on(client, session, provider)


@every_mode
async def test_a_text_may_go_on_with_calls(stage: Stage, mode: ApiMode) -> None:
    provider = stage.provider
    async with steady(stage, mode) as client:
        session = await client.session()
        provider.play(cut("Let me "), f'preamble="save it." {SAVE}', cut("Saved"), said(", I think."))
        frames = await client.run(session, "Save it.")
        assert completed(frames) == ["Let me save it.", "Saved, I think."]
        assert await spoken(client, session) == [
            ("user", "Save it."),
            ("assistant", "Let me "),
            ("assistant", "save it."),
            ("tool", "saved a"),
            ("assistant", "Saved, I think."),
        ]
        await goes_on(client, session, provider)
        assert prefix_breaks(provider.requests) == []


@every_mode
async def test_parts_use_up_the_budget_and_the_closing_call_brings_the_last(stage: Stage, mode: ApiMode) -> None:
    provider = stage.provider
    async with steady(stage, mode) as client:
        session = await client.session()
        provider.play(cut("One, "), cut("two, "), cut("three"))
        frames = await client.run(session, "Count.", max_iterations=2)
        assert frames[-1].data["reason"] == "budget_exhausted"
        note = "[The budget of this turn (2 of 2 iterations) was used up before the work was finished.]"
        assert frames[-1].data["output"] == f"One, two, three\n\n{note}"
        assert len(provider.requests) == 3
        await goes_on(client, session, provider)
        assert prefix_breaks(provider.requests) == []


@pytest.mark.parametrize("keep", [False, True], ids=["text is dropped", "text is kept"])
@every_mode
async def test_an_interrupt_in_the_middle_has_what_was_said_before(stage: Stage, mode: ApiMode, *, keep: bool) -> None:
    provider = stage.provider
    async with steady(stage, mode) as client:
        session = await client.session(keep_interrupted_text=keep)
        provider.play(cut("One, "), "tokens=400 pace_ms=20")
        async with client.turn(session, "Count.") as stream:
            await stream.until("iteration.started", 2)
            delta = await stream.until("message.delta")
            since = now()
            await client.http.delete(f"/turns/{delta.data['turn_id']}")
            frames = await stream.read_to_end()
        assert now() - since < 1.0
        assert frames[-1].type == "turn.interrupted"
        assert frames[-1].data["output"].startswith("One, the")
        await goes_on(client, session, provider)
        assert prefix_breaks(provider.requests) == []


@every_mode
async def test_a_failure_in_the_middle_has_what_was_said_before(stage: Stage, mode: ApiMode) -> None:
    provider = stage.provider
    async with steady(stage, mode, max_attempts=1) as client:
        session = await client.session()
        provider.play(cut("One, "), "status=500", "status=500", "status=500")
        frames = await client.run(session, "Count.")
        assert (frames[-1].type, frames[-1].data["output"]) == ("turn.failed", "One, ")
        provider.clear()
        await goes_on(client, session, provider)


def completion(text: str, **more: Any) -> dict[str, Any]:
    return {"model": "default", "messages": [{"role": "user", "content": text}], **more}


def chunks_of(body: str) -> list[dict[str, Any]]:
    return [json.loads(line[6:]) for line in body.splitlines() if line.startswith("data: {")]


def streamed(body: str) -> tuple[str, str]:
    """The text and the finish reason of a stream."""
    choices = [chunk["choices"][0] for chunk in chunks_of(body) if chunk.get("choices")]
    text = "".join(choice["delta"].get("content") or "" for choice in choices)
    return text, next(choice["finish_reason"] for choice in reversed(choices) if choice["finish_reason"])


@pytest.mark.parametrize("limit", [{"max_tokens": 50}, {"max_completion_tokens": 50}], ids=lambda limit: next(iter(limit)))
async def test_a_completion_with_a_limit_of_its_caller_ends_there(stage: Stage, limit: dict[str, int]) -> None:
    provider = stage.provider
    async with steady(stage) as client:
        provider.play(*[cut("One, ")] * 2)
        whole = await client.http.post("/v1/chat/completions", json=completion("Count.", **limit))
        (choice,) = whole.json()["choices"]
        assert (choice["finish_reason"], choice["message"]["content"]) == ("length", "One, ")
        stream = await client.http.post("/v1/chat/completions", json=completion("Count.", stream=True, **limit))
        assert streamed(stream.text) == ("One, ", "length")
        assert [request.body["max_tokens"] for request in provider.requests] == [50, 50], "one call each"


async def test_a_completion_without_a_limit_is_continued(stage: Stage) -> None:
    provider = stage.provider
    async with steady(stage) as client:
        provider.play(*[cut("One, "), cut("two, "), said("three.")] * 2)
        whole = await client.http.post("/v1/chat/completions", json=completion("Count."))
        (choice,) = whole.json()["choices"]
        assert (choice["finish_reason"], choice["message"]["content"]) == ("stop", "One, two, three.")
        stream = await client.http.post("/v1/chat/completions", json=completion("Count.", stream=True))
        assert streamed(stream.text) == ("One, two, three.", "stop")
        assert chunks_of(stream.text)[-1].get("error") is None


async def test_a_stream_that_breaks_in_a_later_part_repeats_only_that_part(stage: Stage) -> None:
    provider = stage.provider
    async with steady(stage, routes=2) as client:
        provider.play(cut("One, "), 'text="two and three." pace_ms=5 drop_after=1', said("two and three."))
        stream = await client.http.post("/v1/chat/completions", json=completion("Count.", stream=True))
        assert streamed(stream.text) == ("One, two and three.", "stop")


@every_mode
async def test_a_response_of_the_other_facade_is_continued_too(stage: Stage, mode: ApiMode) -> None:
    provider = stage.provider
    async with steady(stage, mode) as client:
        provider.play(cut("One, "), said("two."), cut("One, "))
        answer = (await client.http.post("/v1/responses", json={"model": "default", "input": "Count."})).json()
        assert answer["status"] == "completed"
        assert [part["text"] for item in answer["output"] if item["type"] == "message" for part in item["content"]] == ["One, two."]
        limited = {"model": "default", "input": "Count.", "max_output_tokens": 50}
        answer = (await client.http.post("/v1/responses", json=limited)).json()
        assert (answer["status"], answer["incomplete_details"]) == ("incomplete", {"reason": "max_output_tokens"})
