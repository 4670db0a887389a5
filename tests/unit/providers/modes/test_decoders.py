"""One table of replies through the decoders of all API modes, in reads of every size."""

from collections.abc import Mapping
from dataclasses import dataclass

import msgspec
import pytest

from app.domain.messages import ToolCall
from app.domain.model import ApiMode, FailureReason, FinishReason, MessageDelta, ReasoningDelta, Usage
from app.providers.mode import Defect, Mode, ProviderError, ReplyParts, StreamDecoder
from app.providers.modes.anthropic_messages import AnthropicMessages
from app.providers.modes.chat_completions import ChatCompletions
from app.providers.modes.responses import Responses
from app.providers.sse import SseDecoder
from tests.unit.providers.modes import streams_anthropic_messages, streams_chat_completions, streams_responses
from tests.unit.providers.modes.conversations import CONVERSATIONS, request_for, route_of

USED = Usage(input_tokens=11, output_tokens=7, cached_input_tokens=4, reasoning_tokens=2)
CACHE_WRITTEN = {ApiMode.ANTHROPIC_MESSAGES: 2}
"""Tokens written to the cache: only this mode tells them."""
OVERLOADED = ProviderError({"type": "overloaded_error", "message": "Overloaded"})


@dataclass(frozen=True, slots=True, kw_only=True)
class Reply:
    """What every mode must make of a reply."""

    text: str = ""
    reasoning: str = ""
    calls: tuple[ToolCall, ...] = ()
    bad_calls: tuple[str, ...] = ()
    finish: FinishReason


REPLIES: Mapping[str, Reply | Defect] = {
    "text": Reply(text="Héy🦊", finish=FinishReason.STOP),
    "reasoning": Reply(text="Hey", reasoning="why", finish=FinishReason.STOP),
    "think-tags": Reply(text="Hey", reasoning="why", finish=FinishReason.STOP),
    "call": Reply(text="Looking.", calls=(ToolCall("c1", "lookup", '{"q":"a"}'),), finish=FinishReason.TOOL_CALLS),
    "parallel-calls": Reply(
        calls=(ToolCall("c1", "lookup", '{"q":"a"}'), ToolCall("c2", "lookup", '{"q":"b"}')), finish=FinishReason.TOOL_CALLS
    ),
    "empty-arguments": Reply(calls=(ToolCall("c1", "now", "{}"),), finish=FinishReason.TOOL_CALLS),
    "calls-under-stop": Reply(calls=(ToolCall("c1", "lookup", '{"q":"a"}'),), finish=FinishReason.TOOL_CALLS),
    "illegal-name": Reply(calls=(ToolCall("c1", 'see" path="x', "{}"),), finish=FinishReason.TOOL_CALLS),
    "unreadable-arguments": Reply(calls=(ToolCall("c1", "lookup", "{}"),), bad_calls=("c1",), finish=FinishReason.TOOL_CALLS),
    "length": Reply(text="Once", finish=FinishReason.LENGTH),
    "length-in-a-call": Reply(text="Once", finish=FinishReason.LENGTH),
    "refusal": Reply(text="I won't.", finish=FinishReason.REFUSAL),
    "filtered": Reply(text="Once", finish=FinishReason.CONTENT_FILTER),
    "nothing": FailureReason.INVALID_RESPONSE,
    "calls-without-calls": FailureReason.INVALID_RESPONSE,
    "text-without-calls": Reply(text="Hey", finish=FinishReason.STOP),
    "cut": FailureReason.INCOMPLETE_STREAM,
    "error": OVERLOADED,
    "error-document": OVERLOADED,
    "comments": FailureReason.INVALID_RESPONSE,
}
COLUMNS: Mapping[ApiMode, tuple[Mode, Mapping[str, bytes]]] = {
    ApiMode.CHAT_COMPLETIONS: (ChatCompletions(), streams_chat_completions.STREAMS),
    ApiMode.RESPONSES: (Responses(), streams_responses.STREAMS),
    ApiMode.ANTHROPIC_MESSAGES: (AnthropicMessages(), streams_anthropic_messages.STREAMS),
}


def decoder_of(api_mode: ApiMode) -> StreamDecoder:
    return COLUMNS[api_mode][0].decoder(request_for(route_of(api_mode), CONVERSATIONS["plain"]), 3)


def run(decoder: StreamDecoder, stream: bytes, size: int) -> tuple[str, str]:
    """Decode in reads of ``size`` bytes, as an attempt does; returns the text and the reasoning shown."""
    sse = SseDecoder()
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
    return text, reasoning


@pytest.mark.parametrize("size", [1, 7, 1_000_000], ids=["bytewise", "sevens", "burst"])
@pytest.mark.parametrize("api_mode", COLUMNS)
@pytest.mark.parametrize("name", REPLIES)
def test_a_reply_is_the_same_in_every_mode(name: str, api_mode: ApiMode, size: int) -> None:
    stream, expected = COLUMNS[api_mode][1][name], REPLIES[name]
    decoder = decoder_of(api_mode)
    if stream.startswith(b"{"):
        decoder.feed_body(stream)
        assert decoder.finish() == expected
        return
    shown, thought = run(decoder, stream, size)
    verdict = decoder.finish()
    if not isinstance(expected, Reply):
        assert verdict == expected
        return
    assert isinstance(verdict, ReplyParts)
    assert (verdict.text, verdict.reasoning, verdict.tool_calls, verdict.finish) == (
        expected.text,
        expected.reasoning,
        expected.calls,
        expected.finish,
    )
    assert tuple(verdict.bad_arguments) == expected.bad_calls
    assert (shown, thought) == (expected.text, expected.reasoning)
    assert decoder.usage == msgspec.structs.replace(USED, cache_write_tokens=CACHE_WRITTEN.get(api_mode, 0))


@pytest.mark.parametrize("size", [1, 1_000_000], ids=["bytewise", "burst"])
@pytest.mark.parametrize("api_mode", COLUMNS)
def test_lines_that_end_in_crlf_without_a_space(api_mode: ApiMode, size: int) -> None:
    stream = COLUMNS[api_mode][1]["call"].replace(b"\n", b"\r\n").replace(b"data: ", b"data:")
    decoder = decoder_of(api_mode)
    run(decoder, b": hello\r\n\r\n" + stream, size)
    verdict = decoder.finish()
    assert isinstance(verdict, ReplyParts)
    assert verdict.tool_calls == (ToolCall("c1", "lookup", '{"q":"a"}'),)
