import json
from typing import Any

import pytest

from app.domain.messages import ToolCall
from app.domain.model import FailureReason, FinishReason, MessageDelta, ReasoningDelta, Usage
from app.providers.classify import classify_error
from app.providers.mode import ProviderError, ReplyParts
from app.providers.modes.anthropic_messages.decoder import Decoder
from app.providers.sse import SseDecoder
from tests.unit.providers.modes.streams_anthropic_messages import START, block, call, event, finish, text, thinking

END = finish("end_turn")


def run(stream: bytes, size: int = 10_000) -> tuple[Decoder, str, str]:
    """Decode in reads of ``size`` bytes; returns the decoder with the text and the reasoning shown."""
    sse = SseDecoder()
    decoder = Decoder(3, seed="s")
    shown, thought = "", ""
    for start in range(0, len(stream), size):
        if decoder.done or decoder.defect is not None:
            break
        for delta in decoder.feed(sse.feed(stream[start : start + size])):
            match delta:
                case MessageDelta():
                    shown += delta.text
                case ReasoningDelta():
                    thought += delta.text
    return decoder, shown, thought


def reply(stream: bytes, size: int = 10_000) -> ReplyParts:
    parts = run(stream, size)[0].finish()
    assert isinstance(parts, ReplyParts)
    return parts


@pytest.fixture(params=[1, 7, 1_000_000], ids=["bytewise", "sevens", "burst"])
def size(request: pytest.FixtureRequest) -> int:
    return int(request.param)


def raw_text(*pieces: str) -> bytes:
    """Text deltas whose JSON strings are written as they stand, escapes included."""
    wire = b'data: {"type":"content_block_delta","index":0,"delta":{"type":"text_delta","text":"%b"}}\n\n'
    return b"".join(wire % piece.encode() for piece in pieces)


TEXTS = [
    pytest.param(raw_text("Hey"), "Hey", id="without-any-beginning"),
    pytest.param(START + raw_text("a\\u0000b\\ud83e"), "a\ufffdb\ufffd", id="nul-and-lone-surrogate"),
    pytest.param(START + raw_text("\\ud83e", "\\udd8a!"), "🦊!", id="surrogate-pair-over-two-events"),
    pytest.param(START + raw_text("a").replace(b'"a"', b'"a\xff"'), "a\ufffd", id="not-utf-8"),
    pytest.param(START + block(0, {"type": "text", "text": "He"}, {"type": "text_delta", "text": "y"}), "Hey", id="begins-with-text"),
    pytest.param(START + text("He") + text("y", index=1), "Hey", id="two-blocks"),
    pytest.param(START + event("ping") + event("new_kind", data=[1]) + event("") + text("Hey"), "Hey", id="unknown-events"),
    pytest.param(
        START + block(0, {"type": "new_block", "text": 7}, {"type": "new_delta"}) + text("Hey", index=1), "Hey", id="unknown-block"
    ),
    pytest.param(
        START + block(0, {"type": "server_tool_use", "id": "s", "name": "web_search"}, {"partial_json": '{"q":1}'}) + text("Hey", index=1),
        "Hey",
        id="a-tool-of-the-provider",
    ),
    pytest.param(
        START + block(0, {"type": "text", "text": ""}, {"type": "citations_delta", "citation": {}}, {"text": "Hey"}), "Hey", id="odd"
    ),
]


@pytest.mark.parametrize(("stream", "expected"), TEXTS)
@pytest.mark.parametrize("label", ["end_turn", "stop_sequence", "pause_turn", "new_label"])
def test_text(stream: bytes, expected: str, label: str, size: int) -> None:
    decoder, shown, _ = run(stream + finish(label), size)
    assert decoder.finish() == ReplyParts(text=expected, reasoning="", tool_calls=(), bad_arguments={}, finish=FinishReason.STOP)
    assert shown in {expected, expected.removesuffix("\ufffd")}  # half a pair is waited for to the end


def test_signed_thinking_is_given_back_in_order(size: int) -> None:
    redacted = event("content_block_start", index=1, content_block={"type": "redacted_thinking", "data": "x"})
    stream = START + thinking("wh", "y") + redacted + thinking("", index=2, signature="b") + call(3, "c") + finish("tool_use")
    parts = reply(stream, size)
    assert parts.replay == (
        {"type": "thinking", "thinking": "why", "signature": "c2ln"},
        {"type": "redacted_thinking", "data": "x"},
        {"type": "thinking", "thinking": "", "signature": "b"},
    )
    assert (parts.reasoning, parts.finish) == ("why", FinishReason.TOOL_CALLS)


def test_unsigned_thinking_is_shown_only() -> None:
    stream = (
        START + block(0, {"type": "thinking", "thinking": "wh"}, {"type": "thinking_delta", "thinking": "y"}) + text("Hey", index=1) + END
    )
    parts = reply(stream)
    assert (parts.reasoning, parts.replay) == ("why", ())


def test_halves_of_a_pair_in_thinking_are_one_character_for_the_provider() -> None:
    wire = b'data: {"type":"content_block_delta","index":0,"delta":{"type":"thinking_delta","thinking":"%b"}}\n\n'
    begun = event("content_block_start", index=0, content_block={"type": "thinking", "thinking": "", "signature": "s"})
    parts = reply(START + begun + wire % b"\\ud83e" + wire % b"\\udd8a" + text("Hey", index=1) + END)
    assert parts.replay == ({"type": "thinking", "thinking": "🦊", "signature": "s"},)


LOOKUP_A, LOOKUP_B = ToolCall("a", "lookup", '{"q":"a"}'), ToolCall("b", "lookup", '{"q":"b"}')
CALLS = [
    pytest.param(call(0, "a", whole={"q": "a"}), [LOOKUP_A], id="whole-object"),
    pytest.param(call(0, "a", whole='{"q":"a"}'), [LOOKUP_A], id="whole-text"),
    pytest.param(call(0, "a", '{"q":', '"a"}', whole={"q": "a"}), [LOOKUP_A], id="whole-object-and-pieces"),
    pytest.param(call(0, "a", json.dumps('{"q":"a"}')), [LOOKUP_A], id="encoded-twice"),
    pytest.param(call(0, "a", '{"q":"a"}') + call(0, "b", '{"q":"b"}'), [LOOKUP_A, LOOKUP_B], id="one-index-two-ids"),
    pytest.param(call(0, "a", whole={"q": "a"}) + call(0, "b", whole={"q": "b"}), [LOOKUP_A, LOOKUP_B], id="one-index-two-whole-objects"),
    pytest.param(call(0, "c", '{"q":"\\u0000\\ud83e"}', name="f"), [ToolCall("c", "f", '{"q":"\ufffd\ufffd"}')], id="illegal-characters"),
    pytest.param(call(0, "c", "", name="f"), [ToolCall("c", "f", "{}")], id="one-empty-piece"),
    pytest.param(call(0, "c", whole=[1], name="f"), [ToolCall("c", "f", "{}")], id="a-list"),
]


@pytest.mark.parametrize(("stream", "expected"), CALLS)
def test_tool_calls(stream: bytes, expected: list[ToolCall], size: int) -> None:
    parts = reply(START + stream + finish("tool_use"), size)
    assert (list(parts.tool_calls), parts.finish) == (expected, FinishReason.TOOL_CALLS)


def test_pieces_as_an_object_and_numbers_as_ids() -> None:
    begun = {"type": "tool_use", "id": 5, "name": "f"}
    stream = START + block(0, begun, {"type": "input_json_delta", "partial_json": {"q": 1}}) + finish("tool_use")
    assert reply(stream).tool_calls == (ToolCall("5", "f", '{"q":1}'),)


def test_missing_and_repeated_ids_are_replaced_the_same_way_each_time() -> None:
    stream = START + call(0, "x") + call(1, "") + call(2, "x") + finish("tool_use")
    first, second = reply(stream), reply(stream, 1)
    ids = [made.id for made in first.tool_calls]
    assert first == second
    assert ids[0] == "x"
    assert len(set(ids)) == 3
    assert all(ids)


CUT = [
    pytest.param(text("Once") + finish("model_context_window_exceeded"), ("Once", FinishReason.LENGTH), id="window-full-behind-text"),
    pytest.param(thinking("why") + finish("max_tokens"), ("", FinishReason.LENGTH), id="thinking-used-it-up"),
    pytest.param(text("I") + call(1, "c") + finish("refusal"), ("I", FinishReason.CONTENT_FILTER), id="refusal-behind-a-call"),
    pytest.param(
        finish("refusal", stop_details={"type": "refusal", "explanation": "Not that."}), ("Not that.", FinishReason.REFUSAL), id="explained"
    ),
    pytest.param(finish("refusal", stop_details=None), ("", FinishReason.CONTENT_FILTER), id="refusal-without-a-word"),
]


@pytest.mark.parametrize(("stream", "expected"), CUT)
def test_cut_replies(stream: bytes, expected: tuple[str, FinishReason]) -> None:
    parts = reply(START + stream)
    assert (parts.text, parts.finish, parts.tool_calls) == (*expected, ())


USAGE = [
    pytest.param(
        {"output_tokens": 7}, Usage(input_tokens=11, cached_input_tokens=4, cache_write_tokens=2, output_tokens=7), id="output-only"
    ),
    pytest.param(
        {"input_tokens": 0, "output_tokens": 7},
        Usage(input_tokens=11, cached_input_tokens=4, cache_write_tokens=2, output_tokens=7),
        id="zeros-tell-nothing",
    ),
    pytest.param(
        {"input_tokens": 20, "cache_read_input_tokens": 8, "output_tokens": "7"},
        Usage(input_tokens=28, cached_input_tokens=8, cache_write_tokens=2, output_tokens=7),
        id="grown-and-odd",
    ),
]


@pytest.mark.parametrize(("usage", "expected"), USAGE)
def test_usage_is_cumulative(usage: dict[str, Any], expected: Usage) -> None:
    end = event("message_delta", delta={"stop_reason": "end_turn"}, usage=usage) + event("message_stop")
    assert run(START + text("Hey") + end)[0].usage == expected


@pytest.mark.parametrize(
    ("stream", "reason"),
    [
        pytest.param(b"", FailureReason.INVALID_RESPONSE, id="nothing"),
        pytest.param(event("ping") * 3, FailureReason.INVALID_RESPONSE, id="pings-only"),
        pytest.param(START, FailureReason.INCOMPLETE_STREAM, id="beginning-only"),
        pytest.param(START + text("1. red\n2. gre"), FailureReason.INCOMPLETE_STREAM, id="clean-end-behind-text"),
        pytest.param(
            START + text("Hey") + event("message_delta", delta={"stop_reason": "end_turn"}), FailureReason.INCOMPLETE_STREAM, id="no-stop"
        ),
        pytest.param(START + text("Hey") + b"data: [DONE]\n\n", FailureReason.INCOMPLETE_STREAM, id="a-marker-of-another-protocol"),
        pytest.param(START + text("Hey") + event("message_stop"), FailureReason.INCOMPLETE_STREAM, id="no-reason"),
        pytest.param(START + text("Hey") + b"data: {nonsense\n\n" + END, FailureReason.INVALID_RESPONSE, id="garbage"),
        pytest.param(START + text("Hey") + b"data: [1]\n\n" + END, FailureReason.INVALID_RESPONSE, id="no-object"),
        pytest.param(START + text(" \n") + END, FailureReason.INVALID_RESPONSE, id="blank"),
        pytest.param(START + thinking("why") + END, FailureReason.INVALID_RESPONSE, id="thinking-only"),
        pytest.param(START + finish("tool_use"), FailureReason.INVALID_RESPONSE, id="announced-calls-that-never-came"),
        pytest.param(START + finish("model_context_window_exceeded"), FailureReason.CONTEXT_OVERFLOW, id="window-full"),
    ],
)
def test_no_reply(stream: bytes, reason: FailureReason, size: int) -> None:
    assert run(stream, size)[0].finish() is reason


@pytest.mark.parametrize(
    ("stream", "value", "reason"),
    [
        pytest.param(
            START + text("Par") + event("error", error={"type": "overloaded_error", "message": "Overloaded"}) + END,
            {"type": "overloaded_error", "message": "Overloaded"},
            FailureReason.OVERLOADED,
            id="overloaded-behind-text",
        ),
        pytest.param(
            event("error", error={"type": "rate_limit_error", "message": "slow"}),
            {"type": "rate_limit_error", "message": "slow"},
            FailureReason.RATE_LIMIT,
            id="rate-limit-at-once",
        ),
        pytest.param(b'data: {"error":"insufficient quota"}\n\n', "insufficient quota", FailureReason.BILLING, id="text"),
        pytest.param(b'data: {"type":"error"}\n\n', "error", FailureReason.SERVER_ERROR, id="without-details"),
    ],
)
def test_errors_in_the_stream(stream: bytes, value: object, reason: FailureReason, size: int) -> None:
    decoder, _, _ = run(stream, size)
    assert decoder.finish() == ProviderError(value)
    assert classify_error(value, secrets=()).reason is reason
    assert classify_error(value, secrets=()).status is None


MESSAGE = {
    "id": "m",
    "type": "message",
    "content": [
        {"type": "thinking", "thinking": "why", "signature": "s"},
        {"type": "text", "text": "Looking."},
        {"type": "tool_use", "id": "a", "name": "lookup", "input": {"q": "a"}},
    ],
    "stop_reason": "tool_use",
    "usage": {"input_tokens": 3, "output_tokens": 2},
}


def test_a_whole_message() -> None:
    decoder = Decoder(3, seed="s")
    deltas = decoder.feed_body(json.dumps(MESSAGE).encode())
    assert deltas == [ReasoningDelta(3, "why"), MessageDelta(3, "Looking.")]
    assert decoder.done
    assert decoder.usage == Usage(input_tokens=3, output_tokens=2)
    assert decoder.finish() == ReplyParts(
        text="Looking.",
        reasoning="why",
        tool_calls=(LOOKUP_A,),
        bad_arguments={},
        finish=FinishReason.TOOL_CALLS,
        replay=({"type": "thinking", "thinking": "why", "signature": "s"},),
    )


@pytest.mark.parametrize(
    ("body", "verdict"),
    [
        (b'{"type":"error","error":{"type":"api_error","message":"x"}}', ProviderError({"type": "api_error", "message": "x"})),
        (b'{"error":{"code":429}}', ProviderError({"code": 429})),
        (b'{"detail":"Not Found"}', ProviderError({"detail": "Not Found"})),
        (b"<html>", FailureReason.INVALID_RESPONSE),
        (b"{}", FailureReason.INVALID_RESPONSE),
        (json.dumps({**MESSAGE, "stop_reason": None}).encode(), FailureReason.INCOMPLETE_STREAM),
    ],
    ids=["error", "error-of-another-protocol", "detail", "html", "empty", "unfinished"],
)
def test_other_documents(body: bytes, verdict: object) -> None:
    decoder = Decoder(3, seed="s")
    decoder.feed_body(body)
    assert decoder.finish() == verdict


@pytest.mark.parametrize(
    ("payload", "moved"),
    [
        pytest.param({"type": "ping"}, False, id="ping"),
        pytest.param({"type": "message_start", "message": {"id": "m", "content": []}}, False, id="beginning"),
        pytest.param({"type": "content_block_start", "index": 0, "content_block": {"type": "text", "text": ""}}, False, id="empty-block"),
        pytest.param({"type": "content_block_delta", "index": 0, "delta": {"type": "text_delta", "text": ""}}, False, id="empty-text"),
        pytest.param({"type": "content_block_delta", "index": 0, "delta": {"type": "text_delta", "text": "a"}}, True, id="text"),
        pytest.param({"type": "content_block_delta", "index": 0, "delta": {"thinking": "a"}}, True, id="thinking"),
        pytest.param({"type": "content_block_delta", "index": 0, "delta": {"signature": "a"}}, True, id="signature"),
        pytest.param({"type": "content_block_delta", "index": 0, "delta": {"partial_json": "{"}}, True, id="arguments"),
        pytest.param({"type": "content_block_start", "index": 0, "content_block": {"type": "tool_use", "name": "f"}}, True, id="call"),
        pytest.param({"type": "content_block_start", "index": 0, "content_block": {"type": "redacted_thinking"}}, True, id="redacted"),
        pytest.param({"type": "message_delta", "delta": {"stop_reason": "end_turn"}}, False, id="end"),
    ],
)
def test_only_content_counts_as_movement(payload: dict[str, Any], moved: bool) -> None:
    decoder = Decoder(1, seed="s")
    decoder.feed([json.dumps(payload).encode()])
    assert decoder.moved is moved
    decoder.feed([])
    assert decoder.moved is False


def test_nothing_is_read_behind_the_end() -> None:
    decoder, shown, _ = run(START + text("Hey") + END + text("!", index=1) + event("error", error={"type": "api_error"}))
    assert (decoder.finished, decoder.done, shown) == (True, True, "Hey")
    assert isinstance(decoder.finish(), ReplyParts)
