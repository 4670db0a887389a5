import json
from typing import Any

import pytest

from app.domain.messages import ToolCall
from app.domain.model import FailureReason, FinishReason, MessageDelta, ReasoningDelta, Usage
from app.providers.mode import ProviderError, ReplyParts
from app.providers.modes.responses.decoder import Decoder
from app.providers.sse import SseDecoder

DONE = b"data: [DONE]\n\n"


def event(kind: str, **fields: Any) -> bytes:
    return f"event: {kind}\ndata: ".encode() + json.dumps({"type": kind, **fields}).encode() + b"\n\n"


def text(delta: str, place: int = 0, part: int = 0) -> bytes:
    return event("response.output_text.delta", item_id="msg_1", output_index=place, content_index=part, delta=delta)


def message(*texts: str) -> dict[str, Any]:
    content = [{"type": "output_text", "text": piece, "annotations": []} for piece in texts]
    return {"id": "msg_1", "type": "message", "role": "assistant", "status": "completed", "content": content}


def refusal(said: str) -> dict[str, Any]:
    return {"type": "message", "role": "assistant", "content": [{"type": "refusal", "refusal": said}]}


def call(call_id: str = "call_a", arguments: Any = '{"q":"a"}', name: str = "lookup", **fields: Any) -> dict[str, Any]:
    return {"id": f"fc_{call_id}", "type": "function_call", "call_id": call_id, "name": name, "arguments": arguments, **fields}


def thought(said: str = "", encrypted: str | None = "enc", **fields: Any) -> dict[str, Any]:
    summary = [{"type": "summary_text", "text": said}] if said else []
    return {"id": "rs_1", "type": "reasoning", "summary": summary, "encrypted_content": encrypted, **fields}


def added(item: dict[str, Any], place: int = 0) -> bytes:
    return event("response.output_item.added", output_index=place, item=item)


def ended(item: dict[str, Any], place: int = 0) -> bytes:
    return event("response.output_item.done", output_index=place, item=item)


def arguments(delta: str, place: int = 0, item_id: str = "fc_call_a") -> bytes:
    return event("response.function_call_arguments.delta", item_id=item_id, output_index=place, delta=delta)


def all_arguments(said: str, place: int = 0) -> bytes:
    return event("response.function_call_arguments.done", item_id="fc_call_a", output_index=place, arguments=said)


def completed(*output: dict[str, Any], kind: str = "completed", **fields: Any) -> bytes:
    return event(f"response.{kind}", response={"id": "resp_1", "object": "response", "status": kind, "output": list(output), **fields})


CREATED = event("response.created", response={"id": "resp_1", "status": "in_progress", "output": []})
END = event("response.completed", response={"id": "resp_1", "status": "completed"})


def run(stream: bytes, size: int = 4096) -> tuple[Decoder, str, str]:
    """Decode in reads of ``size`` bytes; returns the decoder with the text and the reasoning shown."""
    sse = SseDecoder()
    decoder = Decoder(3, seed="s")
    shown, thoughts = "", ""
    for start in range(0, len(stream), size):
        if decoder.done or decoder.defect is not None:
            break
        for delta in decoder.feed(sse.feed(stream[start : start + size])):
            assert delta.attempt == 3
            match delta:
                case MessageDelta():
                    shown += delta.text
                case ReasoningDelta():
                    thoughts += delta.text
    return decoder, shown, thoughts


def reply_of(stream: bytes, size: int = 4096) -> ReplyParts:
    reply = run(stream, size)[0].finish()
    assert isinstance(reply, ReplyParts)
    return reply


@pytest.fixture(params=[1, 7, 1_000_000], ids=["bytewise", "sevens", "burst"])
def size(request: pytest.FixtureRequest) -> int:
    return int(request.param)


WHOLE_TEXT = event("response.output_text.done", item_id="msg_1", output_index=0, content_index=0, text="Hey")
WHOLE_PART = event("response.content_part.done", output_index=0, content_index=0, part={"type": "output_text", "text": "Hey"})
TEXTS = [
    pytest.param(
        CREATED + added(message()) + text("He") + text("y") + WHOLE_TEXT + WHOLE_PART + ended(message("Hey")) + completed(message("Hey")),
        "Hey",
        id="usual",
    ),
    pytest.param(text("He") + text("y") + END + DONE, "Hey", id="deltas-alone"),
    pytest.param(WHOLE_TEXT + END, "Hey", id="text-done-alone"),
    pytest.param(WHOLE_PART + WHOLE_TEXT + END, "Hey", id="part-done-first"),
    pytest.param(ended(message("Hey")) + END, "Hey", id="item-done-alone"),
    pytest.param(CREATED + completed(message("He", "y")), "Hey", id="whole-response-alone"),
    pytest.param(ended(message("Hey")) + completed(message("Hey")), "Hey", id="all-but-deltas"),
    pytest.param(text("He") + completed(message("Hey")), "Hey", id="the-whole-response-has-more"),
    pytest.param(text("Hey ") + completed(message("Hey")), "Hey ", id="the-whole-response-differs"),
    pytest.param(text("Hi") + completed(message("Hello there")), "Hi", id="the-whole-response-is-another"),
    pytest.param(text("a") + text("b", part=1) + ended(message("a", "b"), place=4) + END, "ab", id="places-of-two-parts-that-change"),
    pytest.param(text("Hey", place=1) + ended(message("Hey"), place=4) + completed(message("Hey")), "Hey", id="places-that-change"),
    pytest.param(
        text("Hey", place=1, part=1) + WHOLE_TEXT.replace(b'"output_index": 0', b'"output_index": 2') + END, "Hey", id="parts-that-change"
    ),
    pytest.param(
        b'data: {"type":"response.output_text.delta","delta":"He"}\n\ndata: {"type":"response.output_text.delta","delta":"y"}\n\n'
        + ended(message("Hey"))
        + completed(message("Hey")),
        "Hey",
        id="without-places",
    ),
    pytest.param(text("a") + text("b", part=1) + ended(message("a", "b")) + completed(message("a", "b")), "ab", id="two-parts"),
    pytest.param(
        text("a") + ended(message("a")) + ended(message("b"), place=1) + completed(message("a"), message("b")), "ab", id="two-messages"
    ),
    pytest.param(
        ended(message("ha")) + ended(message("ha"), place=1) + completed(message("ha"), message("ha")), "haha", id="twice-the-same"
    ),
    pytest.param(text("a\u0000b") + END, "a\ufffdb", id="nul"),
    pytest.param(text("\ud83e") + text("\udd8a!") + ended(message("🦊!")) + END, "🦊!", id="surrogate-pair-over-two-deltas"),
    pytest.param(text("北京") + text("🦊") + completed(message("北京🦊")), "北京🦊", id="unicode"),
    pytest.param(b'data: {"type":"response.output_text.delta","delta":"a\xffb"}\n\n' + END, "a\ufffdb", id="not-utf-8"),
    pytest.param(text("Hey").replace(b'"output_index": 0', b'"output_index": "0"') + END, "Hey", id="number-as-text"),
    pytest.param((text("Hey") + END).replace(b"\n", b"\r\n").replace(b"data: ", b"data:"), "Hey", id="crlf-without-space"),
    pytest.param(event("response.web_search_call.searching", output_index=0) + event("x") + text("Hey") + END, "Hey", id="unknown-events"),
    pytest.param(event("keepalive", sequence_number=3) + text("") + text("Hey") + END, "Hey", id="empty-events"),
    pytest.param(text("Hey") + completed({"type": "web_search_call"}, message("Hey")), "Hey", id="unknown-items"),
    pytest.param(text("Hey") + event("response.completed"), "Hey", id="end-without-a-response"),
    pytest.param(text("Hey") + event("response.done", response={"status": "completed"}), "Hey", id="end-by-another-name"),
    pytest.param(ended({**message(), "content": "Hey"}) + END, "Hey", id="content-as-text"),
]


@pytest.mark.parametrize(("stream", "said"), TEXTS)
def test_text_is_told_once(stream: bytes, said: str, size: int) -> None:
    decoder, shown, _ = run(stream, size)
    assert shown == said
    assert decoder.finish() == ReplyParts(text=said, reasoning="", tool_calls=(), bad_arguments={}, finish=FinishReason.STOP)


def summary(delta: str, part: int = 0, place: int = 0) -> bytes:
    return event("response.reasoning_summary_text.delta", output_index=place, summary_index=part, delta=delta)


REASONINGS = [
    pytest.param(summary("wh") + summary("y") + ended(thought("why")) + text("Hey", 1) + completed(thought("why")), "why", id="summary"),
    pytest.param(summary("a") + summary("b", 1) + text("Hey", 1) + END, "a\n\nb", id="summary-of-two-parts"),
    pytest.param(event("response.reasoning_text.delta", output_index=0, delta="why") + text("Hey", 1) + END, "why", id="reasoning-text"),
    pytest.param(event("response.reasoning.delta", delta={"text": "why"}) + text("Hey") + END, "why", id="delta-as-object"),
    pytest.param(
        event("response.reasoning_text.delta", output_index=0, delta="why") + summary("short") + text("Hey", 1) + END, "why", id="both"
    ),
    pytest.param(ended(thought("why")) + text("Hey", 1) + END, "why", id="item-done-alone"),
    pytest.param(text("Hey", 1) + completed(thought("why"), message("Hey")), "why", id="whole-response-alone"),
    pytest.param(
        ended(thought("short", content=[{"type": "reasoning_text", "text": "why"}])) + text("Hey", 1) + END, "why", id="content-of-an-item"
    ),
    pytest.param(text("<thi") + text("nk>why</think>\nHey") + completed(message("<think>why</think>\nHey")), "why", id="think-tags"),
]


@pytest.mark.parametrize(("stream", "reasoning"), REASONINGS)
def test_reasoning_is_told_once(stream: bytes, reasoning: str, size: int) -> None:
    decoder, shown, thoughts = run(stream, size)
    reply = decoder.finish()
    assert isinstance(reply, ReplyParts)
    assert (shown, thoughts, reply.text, reply.reasoning) == ("Hey", reasoning, "Hey", reasoning)


LOOKUP_A = ToolCall("call_a", "lookup", '{"q":"a"}')
LOOKUP_B = ToolCall("call_b", "lookup", '{"q":"b"}')
CALL_B = call("call_b", '{"q":"b"}')
CALLS = [
    pytest.param(
        added(call(arguments="")) + arguments('{"q":') + arguments('"a"}') + all_arguments('{"q":"a"}') + ended(call()) + completed(call()),
        [LOOKUP_A],
        id="usual",
    ),
    pytest.param(added(call(arguments="")) + arguments('{"q":"a"}') + END, [LOOKUP_A], id="deltas-alone"),
    pytest.param(added(call(arguments="")) + all_arguments('{"q":"a"}') + END, [LOOKUP_A], id="arguments-done-alone"),
    pytest.param(ended(call()) + END, [LOOKUP_A], id="item-done-alone"),
    pytest.param(added(call()) + END, [LOOKUP_A], id="item-added-alone"),
    pytest.param(completed(call(), CALL_B), [LOOKUP_A, LOOKUP_B], id="whole-response-alone"),
    pytest.param(added(call(arguments="")) + completed(call()), [LOOKUP_A], id="the-whole-response-has-more"),
    pytest.param(arguments('{"q":"a"}') + ended(call()) + END, [LOOKUP_A], id="never-announced"),
    pytest.param(
        added(call(arguments=""))
        + added(call("call_b", ""), 1)
        + arguments('{"q":"b"}', 1, "fc_call_b")
        + arguments('{"q":"a"}')
        + completed(call(), CALL_B),
        [LOOKUP_A, LOOKUP_B],
        id="interleaved",
    ),
    pytest.param(
        added(call(arguments=""))
        + added(call("call_b", ""))
        + arguments('{"q":"a"}')
        + arguments('{"q":"b"}', 0, "fc_call_b")
        + completed(call(), CALL_B),
        [LOOKUP_A, LOOKUP_B],
        id="interleaved-at-one-place",
    ),
    pytest.param(
        added(call(arguments="")) + added(call("call_b", "")) + arguments('{"q":"b"}', 0, "fc_call_b") + arguments('{"q":"a"}') + END,
        [LOOKUP_A, LOOKUP_B],
        id="interleaved-at-one-place-deltas-alone",
    ),
    pytest.param(
        added(call(arguments="")) + arguments('{"q":"a"}') + added(call("call_b", "")) + arguments('{"q":"b"}', 0, "fc_call_b") + END,
        [LOOKUP_A, LOOKUP_B],
        id="one-place-two-ids",
    ),
    pytest.param(
        added(call(arguments="", id="x1")) + arguments('{"q":"a"}', 0, "x2") + ended(call(id="x3")) + completed(call(id="x4")),
        [LOOKUP_A],
        id="item-ids-that-change",
    ),
    pytest.param(ended(call()) + ended(CALL_B) + completed(call(), CALL_B), [LOOKUP_A, LOOKUP_B], id="done-at-one-place"),
    pytest.param(ended(call(arguments={"q": "a"})) + END, [LOOKUP_A], id="arguments-as-object"),
    pytest.param(ended(call(arguments=json.dumps('{"q":"a"}'))) + END, [LOOKUP_A], id="arguments-encoded-twice"),
    pytest.param(
        added(call("n", "", "now")) + all_arguments("") + ended(call("n", "", "now")) + END,
        [ToolCall("n", "now", "{}")],
        id="empty-arguments",
    ),
    pytest.param(
        ended({"id": "fc_7", "type": "function_call", "name": "now"}) + END, [ToolCall("fc_7", "now", "{}")], id="no-call-id-no-arguments"
    ),
    pytest.param(
        ended(call("c\x00", '{"q":"\\u0000\\ud83e"}', 'see" path="x')) + END,
        [ToolCall("c\ufffd", 'see" path="x', '{"q":"\ufffd\ufffd"}')],
        id="illegal-characters",
    ),
]


@pytest.mark.parametrize(("stream", "calls"), CALLS)
def test_tool_calls(stream: bytes, calls: list[ToolCall], size: int) -> None:
    reply = reply_of(stream, size)
    assert list(reply.tool_calls) == calls
    assert (reply.finish, reply.bad_arguments) == (FinishReason.TOOL_CALLS, {})


@pytest.mark.parametrize(
    "stream",
    [
        pytest.param(
            ended(call("c", '{"q":1}')) + ended(call("c", '{"q":2}'), 1) + completed(call("c", '{"q":1}'), call("c", '{"q":2}')), id="told"
        ),
        pytest.param(completed(call("c", '{"q":1}'), call("c", '{"q":2}')), id="whole"),
    ],
)
def test_repeated_ids_are_replaced(stream: bytes) -> None:
    calls = reply_of(stream).tool_calls
    assert [made.arguments for made in calls] == ['{"q":1}', '{"q":2}']
    assert len({made.id for made in calls}) == 2
    assert reply_of(stream, 1).tool_calls == calls


def test_unreadable_arguments_become_empty_with_a_reason() -> None:
    reply = reply_of(ended(call(arguments='{"q": "a')) + END)
    assert reply.tool_calls == (ToolCall("call_a", "lookup", "{}"),)
    assert list(reply.bad_arguments) == ["call_a"]


@pytest.mark.parametrize(
    ("details", "finish"),
    [
        ({"reason": "max_output_tokens"}, FinishReason.LENGTH),
        ({"reason": "content_filter"}, FinishReason.CONTENT_FILTER),
        ({"reason": "something new"}, FinishReason.LENGTH),
        (None, FinishReason.LENGTH),
    ],
    ids=["length", "filter", "unknown", "none"],
)
@pytest.mark.parametrize("kind", ["incomplete", "completed"], ids=["event", "status-alone"])
def test_calls_of_an_incomplete_response_are_dropped(details: object, finish: FinishReason, kind: str, size: int) -> None:
    """Also those whose arguments can be read (C016)."""
    usage = {"input_tokens": 9, "output_tokens": 64}
    end = event(f"response.{kind}", response={"status": "incomplete", "incomplete_details": details, "usage": usage, "output": [call()]})
    stream = ended(thought()) + text("I", 1) + added(call(arguments=""), 2) + arguments('{"q":"a"}', 2) + ended(call(), 2) + end
    decoder, _, _ = run(stream, size)
    assert decoder.finish() == ReplyParts(text="I", reasoning="", tool_calls=(), bad_arguments={}, finish=finish, calls_cut=True)
    assert decoder.usage == Usage(input_tokens=9, output_tokens=64)


REFUSED = [
    pytest.param(
        event("response.refusal.delta", output_index=0, content_index=0, delta="I ")
        + event("response.refusal.delta", output_index=0, content_index=0, delta="won't.")
        + event("response.refusal.done", output_index=0, content_index=0, refusal="I won't.")
        + ended(refusal("I won't."))
        + completed(refusal("I won't.")),
        id="usual",
    ),
    pytest.param(event("response.refusal.done", refusal="I won't.") + END, id="done-alone"),
    pytest.param(ended(refusal("I won't.")) + END, id="item-done-alone"),
    pytest.param(completed(refusal("I won't.")), id="whole-response-alone"),
]


@pytest.mark.parametrize("stream", REFUSED)
def test_a_refusal_is_text_with_its_own_finish(stream: bytes) -> None:
    decoder, shown, _ = run(stream)
    assert shown == "I won't."
    assert decoder.finish() == ReplyParts(text="I won't.", reasoning="", tool_calls=(), bad_arguments={}, finish=FinishReason.REFUSAL)


@pytest.mark.parametrize(
    "stream",
    [
        pytest.param(
            ended(thought("a")) + ended(thought("b", "enc2"), 1) + text("Hey", 2) + completed(thought("a"), message("Hey")), id="told"
        ),
        pytest.param(completed(thought("a"), thought("b", "enc2"), message("Hey")), id="whole"),
    ],
)
def test_encrypted_reasoning_is_kept_without_ids(stream: bytes) -> None:
    assert reply_of(stream).replay == (
        {"type": "reasoning", "summary": [{"type": "summary_text", "text": "a"}], "encrypted_content": "enc"},
        {"type": "reasoning", "summary": [{"type": "summary_text", "text": "b"}], "encrypted_content": "enc2"},
    )


def test_reasoning_that_cannot_be_sent_back_is_not_kept() -> None:
    stream = ended(thought("a", None)) + ended(thought("b", ""), 1) + ended(thought("c", "enc\ud800", content=None, status="completed"), 2)
    assert reply_of(stream + ended(call(), 3) + END).replay == (
        {"type": "reasoning", "summary": [{"type": "summary_text", "text": "c"}], "encrypted_content": "enc\ufffd"},
    )


USAGE = {
    "input_tokens": 11,
    "output_tokens": 7,
    "total_tokens": 18,
    "input_tokens_details": {"cached_tokens": 4},
    "output_tokens_details": {"reasoning_tokens": 2},
}
COUNTED = Usage(input_tokens=11, output_tokens=7, cached_input_tokens=4, reasoning_tokens=2)


@pytest.mark.parametrize(
    ("usage", "counted"),
    [
        (USAGE, COUNTED),
        ({"input_tokens": 11.0, "output_tokens": "7", "input_tokens_details": None}, Usage(input_tokens=11, output_tokens=7)),
        (None, Usage()),
    ],
    ids=["usual", "odd-numbers", "none"],
)
@pytest.mark.parametrize("kind", ["completed", "incomplete", "failed"])
def test_usage(usage: object, counted: Usage, kind: str) -> None:
    assert run(text("a") + completed(kind=kind, usage=usage))[0].usage == counted


@pytest.mark.parametrize(
    ("stream", "reason"),
    [
        pytest.param(b"", FailureReason.INVALID_RESPONSE, id="nothing"),
        pytest.param(b": busy\n\n: busy\n\n", FailureReason.INVALID_RESPONSE, id="comments-only"),
        pytest.param(DONE, FailureReason.INVALID_RESPONSE, id="done-only"),
        pytest.param(CREATED, FailureReason.INCOMPLETE_STREAM, id="created-only"),
        pytest.param(CREATED + text("1. red"), FailureReason.INCOMPLETE_STREAM, id="no-end"),
        pytest.param(text("1. red") + ended(message("1. red")) + DONE, FailureReason.INCOMPLETE_STREAM, id="done-without-end"),
        pytest.param(ended(call()), FailureReason.INCOMPLETE_STREAM, id="call-without-end"),
        pytest.param(text("a") + b"data: {oops\n\n" + END, FailureReason.INVALID_RESPONSE, id="not-json"),
        pytest.param(text("a") + b"data: 5\n\n" + END, FailureReason.INVALID_RESPONSE, id="not-an-object"),
        pytest.param(text(" \n") + END, FailureReason.INVALID_RESPONSE, id="blank-text"),
        pytest.param(completed(), FailureReason.INVALID_RESPONSE, id="no-output"),
        pytest.param(ended(thought("hm")) + END, FailureReason.INVALID_RESPONSE, id="reasoning-only"),
        pytest.param(text("a") + completed(kind="failed", error=None), FailureReason.SERVER_ERROR, id="failed-without-error"),
        pytest.param(text("a") + completed(kind="cancelled"), FailureReason.INCOMPLETE_STREAM, id="cancelled"),
    ],
)
def test_replies_that_are_none(stream: bytes, reason: FailureReason, size: int) -> None:
    assert run(stream, size)[0].finish() is reason


RATE = {"code": "rate_limit_exceeded", "message": "slow down"}


@pytest.mark.parametrize(
    ("stream", "error"),
    [
        pytest.param(text("Par") + completed(kind="failed", error=RATE), RATE, id="failed"),
        pytest.param(text("Par") + completed(error=RATE), RATE, id="completed-with-an-error"),
        pytest.param(text("Par") + event("error", **RATE, param=None), {**RATE, "param": None}, id="flat"),
        pytest.param(event("error", error=RATE), RATE, id="in-an-envelope"),
        pytest.param(b'data: {"error":"quota gone"}\n\n', "quota gone", id="string"),
        pytest.param(b'data: {"message":"bad","code":40001}\n\n', {"message": "bad", "code": 40001}, id="bare"),
    ],
)
def test_errors_inside_a_stream(stream: bytes, error: object, size: int) -> None:
    assert run(stream + END, size)[0].finish() == ProviderError(error)


def test_a_document_instead_of_a_stream() -> None:
    decoder = Decoder(1, seed="s")
    body = {"id": "resp_1", "object": "response", "status": "completed", "error": None, "output": [thought("why"), message("Hey")]}
    deltas = decoder.feed_body(json.dumps({**body, "usage": USAGE}, indent=1).encode())
    assert deltas == [ReasoningDelta(1, "why"), MessageDelta(1, "Hey")]
    reply = decoder.finish()
    assert isinstance(reply, ReplyParts)
    assert (reply.text, len(reply.replay), decoder.usage) == ("Hey", 1, COUNTED)


@pytest.mark.parametrize(
    ("body", "verdict"),
    [
        ({"error": RATE}, ProviderError(RATE)),
        ({"detail": "Not Found"}, ProviderError({"detail": "Not Found"})),
        ({"object": "response", "status": "in_progress", "output": []}, FailureReason.INCOMPLETE_STREAM),
        ({"object": "response", "status": "failed", "error": RATE}, ProviderError(RATE)),
        ({"choices": []}, FailureReason.INVALID_RESPONSE),
        ([], FailureReason.INVALID_RESPONSE),
    ],
    ids=["error", "detail", "unfinished", "failed", "another-protocol", "list"],
)
def test_documents_that_are_no_reply(body: object, verdict: object) -> None:
    decoder = Decoder(1, seed="s")
    assert decoder.feed_body(json.dumps(body).encode()) == []
    assert decoder.finish() == verdict


@pytest.mark.parametrize(
    ("stream", "moved"),
    [
        (CREATED, False),
        (added(message()), False),
        (added(thought()), False),
        (event("response.content_part.added", part={"type": "output_text", "text": ""}), False),
        (text(""), False),
        (text("a"), True),
        (summary("a"), True),
        (added(call(arguments="")), True),
        (arguments("{"), True),
        (ended(message("a")), True),
        (ended(message()), False),
        (ended(thought()), True),
        (ended(thought(encrypted=None)), False),
        (completed(message("a")), True),
    ],
    ids=[
        "created",
        "item",
        "thought",
        "part",
        "empty-text",
        "text",
        "reasoning",
        "call",
        "arguments",
        "whole-item",
        "empty-item",
        "sealed-thought",
        "empty-thought",
        "end",
    ],
)
def test_only_content_counts_as_progress(stream: bytes, moved: bool) -> None:
    decoder = run(stream)[0]
    assert decoder.moved is moved
    decoder.feed([])
    assert decoder.moved is False


def test_the_last_event_ends_the_reply() -> None:
    decoder = run(text("a") + END + text("b"))[0]
    assert (decoder.done, decoder.finished) == (True, True)
    reply = decoder.finish()
    assert isinstance(reply, ReplyParts)
    assert reply.text == "a"
