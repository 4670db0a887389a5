import json
from typing import Any

import pytest

from app.domain.messages import ToolCall
from app.domain.model import FailureReason, FinishReason, MessageDelta, ReasoningDelta, Usage
from app.providers.mode import ProviderError, ReplyParts
from app.providers.modes.chat_completions.decoder import Decoder
from app.providers.sse import SseDecoder

DONE = b"data: [DONE]\n\n"


def chunk(delta: dict[str, Any] | None = None, finish: str | None = None, **extra: Any) -> bytes:
    choices = [] if delta is None else [{"index": 0, "delta": delta, "finish_reason": finish}]
    return event({"id": "c-7", "object": "chat.completion.chunk", "choices": choices, **extra})


def event(value: Any) -> bytes:
    return b"data: " + json.dumps(value).encode() + b"\n\n"


def call(name: str | None, arguments: Any, **fields: Any) -> dict[str, Any]:
    function = {key: value for key, value in (("name", name), ("arguments", arguments)) if value is not None}
    return {"tool_calls": [{"type": "function", "function": function, **fields}]}


END = chunk({}, "stop")
CALLS_END = chunk({}, "tool_calls")


def run(stream: bytes, size: int) -> tuple[Decoder, str, str]:
    """Decode in reads of ``size`` bytes; returns the decoder with the text and the reasoning shown."""
    sse = SseDecoder()
    decoder = Decoder(3, seed="s")
    text, reasoning = "", ""
    for start in range(0, len(stream), size):
        if decoder.done or decoder.defect is not None:
            break
        for delta in decoder.feed(sse.feed(stream[start : start + size])):
            assert delta.attempt == 3
            match delta:
                case MessageDelta():
                    text += delta.text
                case ReasoningDelta():
                    reasoning += delta.text
    return decoder, text, reasoning


@pytest.fixture(params=[1, 7, 1_000_000], ids=["bytewise", "sevens", "burst"])
def size(request: pytest.FixtureRequest) -> int:
    return int(request.param)


TEXTS = [
    pytest.param(chunk({"content": "He"}) + chunk({"content": "y"}) + END + DONE, "Hey", "", id="usual"),
    pytest.param(
        chunk(None) + chunk({"content": None}) + chunk({"content": "Hey"}) + chunk(None) + END + DONE, "Hey", "", id="empty-choices"
    ),
    pytest.param(event({"id": "c"}) + event({}) + chunk({"content": "Hey"}) + END, "Hey", "", id="objects-without-choices-no-done"),
    pytest.param(
        event({"choices": [{"delta": {"content": "Hey"}}]}) + event({"choices": [{"finish_reason": "stop"}]}), "Hey", "", id="sparse"
    ),
    pytest.param(chunk({"content": "Hey"}, "eos") + DONE, "Hey", "", id="unknown-finish-label"),
    pytest.param(chunk({"reasoning_content": "why"}) + chunk({"content": "Hey"}) + END, "Hey", "why", id="reasoning-content"),
    pytest.param(
        chunk({"reasoning": "why", "reasoning_content": "why", "reasoning_details": [{"text": "why"}]}) + chunk({"content": "Hey"}, "stop"),
        "Hey",
        "why",
        id="reasoning-under-three-names",
    ),
    pytest.param(
        chunk({"reasoning_details": [{"type": "reasoning.text", "text": "wh"}, {"summary": "y"}, {"data": "x"}]})
        + chunk({"content": "Hey"}, "stop"),
        "Hey",
        "why",
        id="reasoning-details",
    ),
    pytest.param(
        chunk({"content": "<th"}) + chunk({"content": "ink>why</thi"}) + chunk({"content": "nk>\nHey"}) + END, "Hey", "why", id="think-tag"
    ),
    pytest.param(
        chunk({"content": [{"type": "thinking", "thinking": [{"text": "why"}]}, {"type": "text", "text": "Hey"}]}) + END,
        "Hey",
        "why",
        id="content-parts",
    ),
    pytest.param(
        b'data: {"choices":[{"delta":{"content":"a\\u0000b\\ud83e"}}]}\n\n' + END, "a\ufffdb\ufffd", "", id="nul-and-lone-surrogate"
    ),
    pytest.param(
        b'data: {"choices":[{"delta":{"content":"\\ud83e"}}]}\n\ndata: {"choices":[{"delta":{"content":"\\udd8a!"}}]}\n\n' + END,
        "🦊!",
        "",
        id="surrogate-pair-over-two-chunks",
    ),
    pytest.param(b'data: {"choices":[{"delta":{"content":"a\xffb"}}]}\n\n' + END, "a\ufffdb", "", id="not-utf-8"),
    pytest.param(
        (chunk({"content": "北京🦊"}) + END).replace(b"\n", b"\r\n").replace(b"data: ", b"data:"), "北京🦊", "", id="crlf-without-space"
    ),
    pytest.param(
        event({"choices": [{"index": 1, "delta": {"content": "other"}}]}) + chunk({"content": "Hey"}) + END,
        "Hey",
        "",
        id="other-alternatives",
    ),
    pytest.param(
        event({"choices": [{"message": {"role": "assistant", "content": "Hey"}, "finish_reason": "stop"}]}), "Hey", "", id="message"
    ),
]


@pytest.mark.parametrize(("stream", "text", "reasoning"), TEXTS)
def test_text_and_reasoning(stream: bytes, text: str, reasoning: str, size: int) -> None:
    decoder, shown, thought = run(stream, size)
    reply = decoder.finish()
    assert isinstance(reply, ReplyParts)
    assert (reply.text, reply.reasoning, reply.finish, reply.tool_calls) == (text, reasoning, FinishReason.STOP, ())
    assert thought == reasoning
    assert shown == (text if not text.endswith("\ufffd") else text[:-1])


LOOKUP_A = ToolCall("call_a", "lookup", '{"q":"a"}')
LOOKUP_B = ToolCall("call_b", "lookup", '{"q":"b"}')
CALLS = [
    pytest.param(
        chunk(call("lookup", "", index=0, id="call_a"))
        + chunk(call(None, '{"q":', index=0))
        + chunk(call(None, '"a"}', index=0))
        + CALLS_END,
        [LOOKUP_A],
        id="fragments",
    ),
    pytest.param(
        chunk(call("lookup", '{"q":"a"}', index=0, id="call_a"))
        + chunk(call("lookup", '{"q":"b"}', index=0, id="call_b"))
        + CALLS_END
        + DONE,
        [LOOKUP_A, LOOKUP_B],
        id="one-index-two-ids",
    ),
    pytest.param(
        chunk(call("lookup", "", index=0, id="call_a"))
        + chunk(call("lookup", "", index=1, id="call_b"))
        + chunk(call(None, '{"q":"b"}', index=1))
        + chunk(call(None, '{"q":"a"}', index=0))
        + CALLS_END,
        [LOOKUP_A, LOOKUP_B],
        id="interleaved",
    ),
    pytest.param(
        chunk(call("lookup", '{"q":', index=0, id="call_a")) + chunk(call("lookup", '"a"}', index=0, id="call_a")) + CALLS_END,
        [LOOKUP_A],
        id="id-and-name-repeated",
    ),
    pytest.param(
        chunk(call("lookup", '{"q":', id="call_a"))
        + chunk(call(None, '"a"}'))
        + chunk(call("lookup", '{"q":"b"}', id="call_b"))
        + CALLS_END,
        [LOOKUP_A, LOOKUP_B],
        id="no-index",
    ),
    pytest.param(chunk(call("lookup", {"q": "a"}, id="call_a")) + CALLS_END, [LOOKUP_A], id="arguments-as-object"),
    pytest.param(
        chunk(call("lookup", json.dumps('{"q":"a"}'), index=0, id="call_a")) + CALLS_END, [LOOKUP_A], id="arguments-encoded-twice"
    ),
    pytest.param(chunk(call("lookup", '{"q":"a"}', index=0, id="call_a")) + END, [LOOKUP_A], id="finish-stop-with-calls"),
    pytest.param(chunk(call("now", "", index=0, id="call_n")) + CALLS_END, [ToolCall("call_n", "now", "{}")], id="empty-arguments"),
    pytest.param(chunk(call("now", None, index=0, id="call_n")) + CALLS_END, [ToolCall("call_n", "now", "{}")], id="no-arguments"),
    pytest.param(
        chunk(call('see" path="x', '{"q":"\\u0000\\ud83e"}', index=0, id="c\x00")) + CALLS_END,
        [ToolCall("c\ufffd", 'see" path="x', '{"q":"\ufffd\ufffd"}')],
        id="illegal-characters",
    ),
    pytest.param(
        chunk(call("f", '{"q":"\\u00e9"}', index=0, id="c")) + CALLS_END, [ToolCall("c", "f", '{"q":"\\u00e9"}')], id="escapes-kept"
    ),
]


@pytest.mark.parametrize(("stream", "calls"), CALLS)
def test_tool_calls(stream: bytes, calls: list[ToolCall], size: int) -> None:
    reply = run(stream, size)[0].finish()
    assert isinstance(reply, ReplyParts)
    assert list(reply.tool_calls) == calls
    assert (reply.finish, reply.bad_arguments) == (FinishReason.TOOL_CALLS, {})


def detail(kind: str, index: int | None = None, **members: Any) -> bytes:
    place = {} if index is None else {"index": index}
    return chunk({"reasoning_details": [{"type": f"reasoning.{kind}", **members, **place}]})


def test_details_of_reasoning_are_put_together_to_be_sent_back(size: int) -> None:
    stream = (
        detail("text", 0, text="wh", format="f", id=None)
        + detail("text", 0, text="y", signature=None)
        + detail("text", 0, signature="c2ln")
        + detail("summary", 1, summary="be")
        + detail("summary", 1, summary="cause")
        + detail("encrypted", 2, data="abc", id="r1")
        + detail("encrypted", 2, data="def", id="r2")
    )
    reply = run(stream + chunk({"content": "Hey"}, "stop") + DONE, size)[0].finish()
    assert isinstance(reply, ReplyParts)
    assert reply.reasoning == "whybecause"
    assert reply.replay == (
        {
            "reasoning_details": [
                {"type": "reasoning.text", "text": "why", "format": "f", "id": None, "signature": "c2ln", "index": 0},
                {"type": "reasoning.summary", "summary": "because", "index": 1},
                {"type": "reasoning.encrypted", "data": "abc", "id": "r1", "index": 2},
                {"type": "reasoning.encrypted", "data": "def", "id": "r2", "index": 2},
            ]
        },
    )


def test_plain_reasoning_is_kept_to_be_sent_back_with_calls_only(size: int) -> None:
    thought = chunk({"reasoning_content": "wh"}) + chunk({"reasoning_content": "y"})
    calling = run(thought + chunk(call("f", "{}", index=0, id="c")) + CALLS_END + DONE, size)[0].finish()
    saying = run(thought + chunk({"content": "Hey"}) + END + DONE, size)[0].finish()
    assert isinstance(calling, ReplyParts)
    assert isinstance(saying, ReplyParts)
    assert (calling.replay, saying.replay) == (({"reasoning_content": "why"},), ())


def test_missing_and_repeated_ids_are_replaced_the_same_way_each_time() -> None:
    stream = (
        chunk(call("f", {"q": 1}, id="x"))
        + chunk(call("f", {"q": 2}, id=""))
        + chunk(call("f", {"q": 2}))
        + event({"choices": [{"delta": {"tool_calls": [{"index": 5, "id": "x", "function": {"name": "g", "arguments": "{}"}}]}}]})
        + CALLS_END
    )
    first, second = run(stream, 10_000)[0].finish(), run(stream, 1)[0].finish()
    assert first == second
    assert isinstance(first, ReplyParts)
    ids = [made.id for made in first.tool_calls]
    assert len(ids) == 4 == len(set(ids))
    assert ids[0] == "x"
    assert all(ids)


@pytest.mark.parametrize(
    "arguments",
    ['{"q": "a', '{"a":1}{"a":2}', '["a"]', "3", "not json", "[" * 100_000],
    ids=["cut", "two", "list", "number", "words", "deep"],
)
def test_unreadable_arguments_become_empty_with_a_reason(arguments: str) -> None:
    reply = run(chunk(call("f", arguments, index=0, id="c")) + CALLS_END + DONE, 4096)[0].finish()
    assert isinstance(reply, ReplyParts)
    assert reply.tool_calls == (ToolCall("c", "f", "{}"),)
    assert list(reply.bad_arguments) == ["c"]
    assert reply.bad_arguments["c"]


@pytest.mark.parametrize(("label", "finish"), [("length", FinishReason.LENGTH), ("content_filter", FinishReason.CONTENT_FILTER)])
def test_calls_of_a_cut_reply_are_dropped(label: str, finish: FinishReason) -> None:
    stream = chunk({"content": "I"}) + chunk(call("f", "{}", index=0, id="c")) + chunk({}, label) + DONE
    assert run(stream, 4096)[0].finish() == ReplyParts(
        text="I", reasoning="", tool_calls=(), bad_arguments={}, finish=finish, calls_cut=True
    )


@pytest.mark.parametrize("label", ["refusal", "content_filter", "SAFETY", "recitation", "guardrail_intervened"])
def test_text_that_a_filter_cut_is_no_answer_and_no_refusal(label: str) -> None:
    reply = run(chunk({"content": "First, "}) + chunk({}, label) + DONE, 4096)[0].finish()
    assert reply == ReplyParts(text="First, ", reasoning="", tool_calls=(), bad_arguments={}, finish=FinishReason.CONTENT_FILTER)


def test_a_refusal_is_text_with_its_own_finish() -> None:
    decoder, shown, _ = run(chunk({"refusal": "I "}) + chunk({"refusal": "won't."}) + END + DONE, 4096)
    assert shown == "I won't."
    assert decoder.finish() == ReplyParts(text="I won't.", reasoning="", tool_calls=(), bad_arguments={}, finish=FinishReason.REFUSAL)


def test_an_unclosed_think_tag_does_not_swallow_the_answer() -> None:
    decoder, shown, thought = run(chunk({"content": "<think>The answer is 4"}) + END + DONE, 4096)
    reply = decoder.finish()
    assert isinstance(reply, ReplyParts)
    assert (shown, thought, reply.text) == ("", "The answer is 4", "The answer is 4")


def test_reasoning_that_used_up_the_output_is_not_an_answer() -> None:
    reply = run(chunk({"content": "<think>Let me"}) + chunk({}, "length") + DONE, 4096)[0].finish()
    assert reply == ReplyParts(text="", reasoning="Let me", tool_calls=(), bad_arguments={}, finish=FinishReason.LENGTH)


USAGE = {
    "prompt_tokens": 11,
    "completion_tokens": 7,
    "prompt_tokens_details": {"cached_tokens": 4},
    "completion_tokens_details": {"reasoning_tokens": 2},
}
COUNTED = Usage(input_tokens=11, output_tokens=7, cached_input_tokens=4, reasoning_tokens=2)


@pytest.mark.parametrize(
    ("stream", "usage"),
    [
        pytest.param(chunk({"content": "a"}) + END + chunk(None, usage=USAGE) + DONE, COUNTED, id="behind-the-finish"),
        pytest.param(chunk({"content": "a"}, "stop", usage=USAGE) + DONE, COUNTED, id="with-the-finish"),
        pytest.param(
            chunk(None, usage={"prompt_tokens": 1}) + chunk({"content": "a"}, usage=USAGE) + END, COUNTED, id="the-last-one-counts"
        ),
        pytest.param(chunk({"content": "a"}) + event({"usage": USAGE}) + END, COUNTED, id="without-choices"),
        pytest.param(
            event({"choices": [{"delta": {"content": "a"}, "finish_reason": "stop", "usage": USAGE}]}), COUNTED, id="within-the-choice"
        ),
        pytest.param(
            chunk({"content": "a"})
            + event({"usage": {"prompt_tokens": 11.0, "completion_tokens": "7", "prompt_cache_hit_tokens": 4}})
            + END,
            Usage(input_tokens=11, output_tokens=7, cached_input_tokens=4),
            id="odd-numbers",
        ),
        pytest.param(chunk({"content": "a"}, usage=None) + END, Usage(), id="none"),
    ],
)
def test_usage(stream: bytes, usage: Usage, size: int) -> None:
    assert run(stream, size)[0].usage == usage


@pytest.mark.parametrize(
    ("stream", "reason"),
    [
        pytest.param(b"", FailureReason.INVALID_RESPONSE, id="nothing"),
        pytest.param(b": busy\n\n: busy\n\n", FailureReason.INVALID_RESPONSE, id="comments-only"),
        pytest.param(DONE, FailureReason.INVALID_RESPONSE, id="done-only"),
        pytest.param(chunk({"content": "1. red"}), FailureReason.INCOMPLETE_STREAM, id="no-finish"),
        pytest.param(chunk({"content": "1. red"}) + DONE, FailureReason.INCOMPLETE_STREAM, id="done-without-finish"),
        pytest.param(chunk({"content": "a"}) + b"data: {oops\n\n" + END, FailureReason.INVALID_RESPONSE, id="not-json"),
        pytest.param(chunk({"content": "a"}) + b"data: 5\n\n" + END, FailureReason.INVALID_RESPONSE, id="not-an-object"),
        pytest.param(chunk({"content": " \n"}) + END + DONE, FailureReason.INVALID_RESPONSE, id="blank-text"),
        pytest.param(chunk({"content": ""}) + CALLS_END + DONE, FailureReason.INVALID_RESPONSE, id="announced-calls-missing"),
        pytest.param(chunk({"reasoning": "hm"}) + END + DONE, FailureReason.INVALID_RESPONSE, id="reasoning-only"),
        pytest.param(chunk({"content": "a"}, "error") + DONE, FailureReason.SERVER_ERROR, id="finish-error"),
        pytest.param(chunk({"content": "a"}, "abort") + DONE, FailureReason.INCOMPLETE_STREAM, id="finish-abort"),
        pytest.param(chunk({}, "model_context_window_exceeded") + DONE, FailureReason.CONTEXT_OVERFLOW, id="finish-window"),
    ],
)
def test_replies_that_are_none(stream: bytes, reason: FailureReason, size: int) -> None:
    assert run(stream, size)[0].finish() is reason


@pytest.mark.parametrize(
    ("stream", "error"),
    [
        pytest.param(chunk({"content": "Par"}) + chunk(None, error={"code": 502}) + DONE, {"code": 502}, id="object-behind-text"),
        pytest.param(event({"error": "quota gone"}) + DONE, "quota gone", id="string"),
        pytest.param(
            event({"object": "error", "message": "bad", "code": 40001}), {"object": "error", "message": "bad", "code": 40001}, id="bare"
        ),
        pytest.param(
            event({"choices": [{"delta": {}, "error": {"code": 429}, "finish_reason": "error"}]}), {"code": 429}, id="in-the-choice"
        ),
    ],
)
def test_errors_inside_a_stream(stream: bytes, error: object, size: int) -> None:
    assert run(stream, size)[0].finish() == ProviderError(error)


def test_a_document_instead_of_a_stream() -> None:
    decoder = Decoder(1, seed="s")
    body = {"choices": [{"index": 0, "message": {"content": "Hey"}, "finish_reason": "stop"}], "usage": {"prompt_tokens": 2}}
    assert decoder.feed_body(json.dumps(body, indent=1).encode()) == [MessageDelta(1, "Hey")]
    assert isinstance(decoder.finish(), ReplyParts)
    assert decoder.usage == Usage(input_tokens=2)


@pytest.mark.parametrize(
    ("delta", "moved"),
    [
        ({"role": "assistant"}, False),
        ({"role": "assistant", "content": ""}, False),
        ({"tool_calls": []}, False),
        ({"content": "a"}, True),
        ({"reasoning_content": "a"}, True),
        (call(None, "{", index=0), True),
    ],
    ids=["role", "empty-text", "no-calls", "text", "reasoning", "arguments"],
)
def test_only_content_counts_as_progress(delta: dict[str, Any], moved: bool) -> None:
    decoder = Decoder(1, seed="s")
    decoder.feed([chunk(delta)[6:-2]])
    assert decoder.moved is moved
    decoder.feed([])
    assert decoder.moved is False
