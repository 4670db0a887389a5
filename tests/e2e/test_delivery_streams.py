"""Quirks of provider streams in every API mode; each ends with a plain turn that a strict and picky provider takes."""

import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest

from app.domain.model import ApiMode
from app.simulator import raw_script
from tests.e2e.chains import CHAT, MESSAGES, RESPONSES, Link, chain, every_mode, failures, goes_on
from tests.e2e.harness import Client, Frame, text_of, types
from tests.e2e.operator_tools import runs
from tests.e2e.stage import Stage
from tests.e2e.wire import DONE, bare, chunk, data
from tests.e2e.wire_modes import WRITERS, Call, calls_sent, event

pytestmark = pytest.mark.asyncio(loop_scope="module")

OTHERS = (RESPONSES, MESSAGES)
"""The modes that the cases of Chat Completions do not cover."""
in_the_others = pytest.mark.parametrize("mode", OTHERS, ids=[mode.value for mode in OTHERS])


@asynccontextmanager
async def alone(stage: Stage, mode: ApiMode) -> AsyncIterator[Client]:
    """A client of a tenant with a single route, tried once."""
    async with chain(stage, Link(url=stage.provider.base_url, mode=mode), max_attempts=1) as client:
        yield client


@asynccontextmanager
async def followed(stage: Stage, mode: ApiMode) -> AsyncIterator[Client]:
    """A client of a tenant with two routes, each tried once."""
    links = [Link(url=simulator.base_url, mode=mode) for simulator in (stage.provider, stage.backup)]
    async with chain(stage, *links, max_attempts=1) as client:
        yield client


def results(frames: list[Frame]) -> list[tuple[str, str]]:
    return sorted((frame.data["tool_call_id"], frame.data["output"]) for frame in frames if frame.type == "tool.completed")


@every_mode
async def test_events_without_content_carry_usage_once_and_no_text(stage: Stage, mode: ApiMode) -> None:
    writer = WRITERS[mode]
    async with alone(stage, mode) as client:
        stage.provider.play(raw_script(writer.start(11) + writer.text("Good ", "", "day") + writer.end(11, 7)))
        session = await client.session()
        frames = await client.run(session)
        assert frames[-1].data["output"] == text_of(frames) == "Good day"
        assert (frames[-1].data["usage"]["input_tokens"], frames[-1].data["usage"]["output_tokens"]) == (11, 7)
        await goes_on(client, session, stage.provider)


@every_mode
async def test_a_new_id_on_a_used_index_is_another_call(stage: Stage, mode: ApiMode) -> None:
    writer = WRITERS[mode]
    made = [Call("lookup", '{"q":"x"}', "call_x"), Call("lookup", '{"q":"y"}', "call_y")]
    async with alone(stage, mode) as client:
        stage.provider.play(raw_script(writer.start() + writer.calls(*made) + writer.end()))
        session = await client.session()
        frames = await client.run(session)
        assert results(frames) == [("call_x", "found x"), ("call_y", "found y")]
        sent = calls_sent(mode, stage.provider.requests[1].body)
        assert sent == [("call_x", "lookup", {"q": "x"}), ("call_y", "lookup", {"q": "y"})]
        await goes_on(client, session, stage.provider)


@every_mode
async def test_arguments_as_an_object_and_calls_without_an_id_run(stage: Stage, mode: ApiMode) -> None:
    writer = WRITERS[mode]
    made = [Call("lookup", {"q": "first"}, "call_1"), Call("lookup", {"q": "second"}, "", 1)]
    async with alone(stage, mode) as client:
        stage.provider.play(raw_script(writer.start() + writer.calls(*made) + writer.end()))
        session = await client.session()
        frames = await client.run(session)
        answered = {output: call_id for call_id, output in results(frames)}
        assert answered.keys() == {"found first", "found second"}
        assert answered["found first"] == "call_1"
        assert answered["found second"] not in ("", "call_1")
        sent = calls_sent(mode, stage.provider.requests[1].body)
        assert [arguments for _, _, arguments in sent] == [{"q": "first"}, {"q": "second"}]
        assert len({call_id for call_id, _, _ in sent}) == 2
        await goes_on(client, session, stage.provider)


@every_mode
async def test_empty_arguments_mean_none(stage: Stage, mode: ApiMode) -> None:
    writer = WRITERS[mode]
    async with alone(stage, mode) as client:
        stage.provider.play(raw_script(writer.start() + writer.calls(Call("now", "", "call_now")) + writer.end()))
        session = await client.session()
        assert results(await client.run(session)) == [("call_now", "12:00")]
        assert calls_sent(mode, stage.provider.requests[1].body) == [("call_now", "now", {})]
        await goes_on(client, session, stage.provider)


@every_mode
async def test_calls_run_although_the_label_tells_of_an_ordinary_end(stage: Stage, mode: ApiMode) -> None:
    writer = WRITERS[mode]
    made = [Call("lookup", '{"q":"1"}', "c1", 1), Call("lookup", '{"q":"2"}', "c2", 2)]
    async with alone(stage, mode) as client:
        stage.provider.play(raw_script(writer.start() + writer.text("Let me see.") + writer.calls(*made) + writer.end()), 'text="There."')
        session = await client.session()
        frames = await client.run(session)
        assert results(frames) == [("c1", "found 1"), ("c2", "found 2")]
        assert frames[-1].data["output"] == "There."
        await goes_on(client, session, stage.provider)


NO_CALLS = {CHAT: "tool_calls", RESPONSES: "", MESSAGES: "tool_use"}


@every_mode
async def test_announced_calls_that_never_came_are_not_asked_for_again_and_again(stage: Stage, mode: ApiMode) -> None:
    writer = WRITERS[mode]
    script = raw_script(writer.start() + writer.end(label=NO_CALLS[mode]))
    async with alone(stage, mode) as client:
        stage.provider.play(*[script] * 5)
        session = await client.session()
        frames = await client.run(session)
        assert (frames[-1].type, frames[-1].data["reason"]) == ("turn.failed", "invalid_response")
        assert len(stage.provider.requests) == 1
        stage.reset()
        await goes_on(client, session, stage.provider)
    async with followed(stage, mode) as client:
        stage.reset()
        stage.provider.play(*[script] * 5)
        session = await client.session()
        frames = await client.run(session, '[[sim text="Better."]]')
        assert frames[-1].data["output"] == "Better."
        assert (len(stage.provider.requests), len(stage.backup.requests)) == (1, 1)
        await goes_on(client, session, stage.backup)


CUT_LABELS = {CHAT: "length", RESPONSES: "max_output_tokens", MESSAGES: "max_tokens"}


@every_mode
async def test_a_call_of_a_cut_answer_never_runs_and_is_charged(stage: Stage, mode: ApiMode) -> None:
    """Its arguments can be read, but a field that the tool needs is missing."""
    writer = WRITERS[mode]
    body = writer.start(9) + writer.calls(Call("save", '{"path":"/tmp/x"}', "call_1")) + writer.end(9, 64, CUT_LABELS[mode])
    async with alone(stage, mode) as client:
        stage.provider.play(*[raw_script(body)] * 4)
        session = await client.session()
        frames = await client.run(session)
        assert runs.begun["save"] == 0
        assert (frames[-1].type, frames[-1].data["reason"]) == ("turn.failed", "output_truncated")
        assert (frames[-1].data["usage"]["input_tokens"], frames[-1].data["usage"]["output_tokens"]) == (4 * 9, 4 * 64)
        assert [message["role"] for message in await client.messages(session)] == ["user"]
        await goes_on(client, session, stage.provider)


FAILED_RESPONSES = {
    "server_error": ("server_error", "The model died."),
    "rate_limit": ("rate_limit_exceeded", "Slow down."),
    "billing": ("insufficient_quota", "No money."),
    "content_filtered": ("content_policy_violation", "Not that."),
}


@pytest.mark.parametrize(("reason", "code", "message"), [(reason, *said) for reason, said in FAILED_RESPONSES.items()])
async def test_a_failed_response_is_of_the_class_that_its_error_names(stage: Stage, *, reason: str, code: str, message: str) -> None:
    writer = WRITERS[RESPONSES]
    response = {
        "id": "resp_x",
        "status": "failed",
        "error": {"code": code, "message": message},
        "usage": {"input_tokens": 9, "output_tokens": 3},
    }
    async with followed(stage, RESPONSES) as client:
        stage.provider.play(raw_script(writer.start() + event("response.failed", response=response)))
        session = await client.session()
        frames = await client.run(session, '[[sim text="Better."]]')
        assert failures(frames) == [("p1", reason)]
        assert frames[-1].type == ("turn.failed" if reason == "content_filtered" else "turn.completed")
        assert frames[-1].data["routes"][0]["usage"]["output_tokens"] == 3
        await goes_on(client, session, stage.provider, stage.backup)


BEFORE_TEXT = {
    "error as text": (data({"error": "You exceeded your current quota, please check your plan and billing details"}), "billing"),
    "json body": (json.dumps({"error": {"message": "Slow down", "code": 429}}).encode(), "rate_limit"),
    "comments only": (b": ping\n\n: ping\n\n", "invalid_response"),
    "error event": (b"event: error\n" + data({"type": "error", "error": {"type": "overloaded_error", "message": "Busy"}}), "overloaded"),
    "nothing at all": (b"", "invalid_response"),
    "a page": (b"<!DOCTYPE html><html><body>Sign in</body></html>", "invalid_response"),
}


@in_the_others
@pytest.mark.parametrize(("body", "reason"), BEFORE_TEXT.values(), ids=BEFORE_TEXT)
async def test_a_failure_inside_status_200_goes_to_the_next_route(stage: Stage, mode: ApiMode, *, body: bytes, reason: str) -> None:
    async with followed(stage, mode) as client:
        stage.provider.play(raw_script(body))
        session = await client.session()
        frames = await client.run(session, '[[sim text="Whole."]]')
        assert failures(frames) == [("p1", reason)]
        assert "attempt.reset" not in types(frames)
        assert frames[-1].data["output"] == text_of(frames) == "Whole."
        await goes_on(client, session, stage.provider, stage.backup)


AFTER_TEXT: dict[str, tuple[ApiMode, bytes, str]] = {
    "chat: error chunk": (CHAT, bare(error={"code": 502, "message": "upstream died"}), "server_error"),
    "chat: end": (CHAT, b"", "incomplete_stream"),
    "chat: done alone": (CHAT, DONE, "incomplete_stream"),
    "chat: half a chunk": (CHAT, chunk({"content": "tial"})[:-20], "incomplete_stream"),
    "responses: error event": (RESPONSES, event("error", code="server_error", message="died", param=None), "server_error"),
    "responses: failed": (
        RESPONSES,
        event("response.failed", response={"status": "failed", "error": {"code": "server_overloaded", "message": "Busy"}}),
        "overloaded",
    ),
    "responses: end": (RESPONSES, b"", "incomplete_stream"),
    "responses: done alone": (RESPONSES, DONE, "incomplete_stream"),
    "responses: half an event": (RESPONSES, WRITERS[RESPONSES].end()[:-30], "incomplete_stream"),
    "messages: overloaded": (MESSAGES, event("error", error={"type": "overloaded_error", "message": "Overloaded"}), "overloaded"),
    "messages: api error": (MESSAGES, event("error", error={"type": "api_error", "message": "died"}), "server_error"),
    "messages: rate limit": (MESSAGES, event("error", error={"type": "rate_limit_error", "message": "slow"}), "rate_limit"),
    "messages: end": (MESSAGES, b"", "incomplete_stream"),
    "messages: stop alone": (MESSAGES, event("message_stop"), "incomplete_stream"),
    "messages: reason alone": (MESSAGES, event("message_delta", delta={"stop_reason": "end_turn"}), "incomplete_stream"),
}


@pytest.mark.parametrize(("mode", "tail", "reason"), AFTER_TEXT.values(), ids=AFTER_TEXT)
async def test_half_an_answer_is_never_an_answer_and_the_next_route_gives_a_whole_one(
    stage: Stage, mode: ApiMode, *, tail: bytes, reason: str
) -> None:
    writer = WRITERS[mode]
    script = raw_script(writer.start() + writer.text("The three causes are") + tail)
    async with alone(stage, mode) as client:
        stage.provider.play(script)
        session = await client.session()
        frames = await client.run(session)
        assert types(frames) == ["turn.started", "iteration.started", "message.delta", "attempt.failed", "attempt.reset", "turn.failed"]
        assert failures(frames) == [("p1", reason)]
        assert text_of(frames) == frames[-1].data["output"] == ""
        assert "causes" not in json.dumps(await client.messages(session, view="context"))
        await goes_on(client, session, stage.provider)
    async with followed(stage, mode) as client:
        stage.reset()
        stage.provider.play(script)
        session = await client.session()
        frames = await client.run(session, '[[sim text="Whole."]]')
        assert failures(frames) == [("p1", reason)]
        assert frames[-1].data["output"] == text_of(frames) == "Whole."
        end = await goes_on(client, session, stage.provider, stage.backup)
        assert end.data["route"]["provider"] == "p2", "what broke off is left alone for a while"


@every_mode
@pytest.mark.parametrize("piece_bytes", [1, 7], ids=["one byte at a time", "seven bytes"])
async def test_bytes_may_come_in_any_pieces_and_lines_end_in_any_way(stage: Stage, mode: ApiMode, piece_bytes: int) -> None:
    writer = WRITERS[mode]
    arguments = json.dumps({"q": "苏州"}, ensure_ascii=False)
    stream = (
        b": welcome\n\n" + writer.start() + writer.text("您好🐳 ", "ü") + writer.calls(Call("lookup", arguments, "c1", 1)) + writer.end()
    )
    windows = stream.replace(b"data: ", b"data:").replace(b"event: ", b"event:").replace(b"\n", b"\r\n")
    async with alone(stage, mode) as client:
        stage.provider.play(raw_script(windows, piece_bytes=piece_bytes))
        session = await client.session()
        frames = await client.run(session)
        first = [frame.data["text"] for frame in frames if frame.type == "message.delta" and frame.data["attempt"] == 1]
        assert "".join(first) == "您好🐳 ü"
        assert results(frames) == [("c1", "found 苏州")]
        assert frames[-1].type == "turn.completed"
        await goes_on(client, session, stage.provider)


@every_mode
async def test_thinking_in_tags_is_reasoning_and_later_tags_are_text(stage: Stage, mode: ApiMode) -> None:
    writer = WRITERS[mode]
    pieces = ["<th", "ink>hid", "den</thi", "nk>\n\nSHOWN: 1 <", " 2 and `<think", ">` is a tag"]
    async with alone(stage, mode) as client:
        stage.provider.play(raw_script(writer.start() + writer.text(*pieces) + writer.end()))
        session = await client.session()
        frames = await client.run(session)
        assert text_of(frames) == frames[-1].data["output"] == "SHOWN: 1 < 2 and `<think>` is a tag"
        assert "".join(frame.data["text"] for frame in frames if frame.type == "reasoning.delta") == "hidden"
        await goes_on(client, session, stage.provider)
        assert b"hidden" not in stage.provider.requests[-1].raw


@every_mode
async def test_an_unclosed_thinking_tag_does_not_swallow_the_answer(stage: Stage, mode: ApiMode) -> None:
    writer = WRITERS[mode]
    async with alone(stage, mode) as client:
        stage.provider.play(raw_script(writer.start() + writer.text("<think>The answer is 4.") + writer.end()))
        session = await client.session()
        frames = await client.run(session)
        assert frames[-1].data["output"] == "The answer is 4."
        await goes_on(client, session, stage.provider)
