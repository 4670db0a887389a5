"""A streamed reply: its deltas as they come, and the verdict on it at the end.

A reply is complete when ``message_stop`` was seen and a ``stop_reason`` before it; a clean end of the response is no proof. What the
reply holds decides what it is, not the label: calls under ``end_turn`` run, a text under ``tool_use`` without a call is an answer.
Calls under ``max_tokens`` or ``refusal`` may be cut and are dropped. An answer of nothing (a known habit behind tool results) is an
invalid response, so that another attempt is made.
"""

from collections.abc import Sequence
from typing import Any, Final

import msgspec

from app.domain.messages import clean_text
from app.domain.model import Delta, FailureReason, FinishReason, Usage
from app.providers.mode import Defect, ProviderError, ReplyParts
from app.providers.modes.anthropic_messages.events import Block, BlockDelta, Event, EventUsage, Start, decode_event, decode_leniently
from app.providers.reply_text import ReplyText
from app.providers.tool_calls import ToolCallAssembly

_FINISH: Final = {
    "tool_use": FinishReason.TOOL_CALLS,
    "max_tokens": FinishReason.LENGTH,
    "model_context_window_exceeded": FinishReason.LENGTH,
    "refusal": FinishReason.REFUSAL,
}
"""Any other label (``end_turn``, ``stop_sequence``, ``pause_turn``, …) is an ordinary end."""

_WINDOW_FULL: Final = "model_context_window_exceeded"
_CUT: Final = frozenset({FinishReason.LENGTH, FinishReason.REFUSAL})


class _Thought:
    """A block of thinking while it is put together."""

    __slots__ = ("signature", "thinking")

    def __init__(self) -> None:
        self.thinking: list[str] = []
        self.signature = ""

    def block(self) -> dict[str, Any] | None:
        """As it is to be sent back; ``None`` without a signature: it would be refused."""
        if not self.signature:
            return None
        return {"type": "thinking", "thinking": clean_text("".join(self.thinking)), "signature": clean_text(self.signature)}


class Decoder:
    """Decodes one response, as :class:`app.providers.mode.StreamDecoder`."""

    __slots__ = (
        "_calls",
        "_foreign",
        "_label",
        "_message_id",
        "_refused",
        "_said",
        "_seed",
        "_seen",
        "_stopped",
        "_thought",
        "_thoughts",
        "_whole_inputs",
        "defect",
        "done",
        "moved",
        "usage",
    )

    def __init__(self, attempt: int, *, seed: str) -> None:
        self.usage = Usage()
        self.moved = False
        self.done = False
        self.defect: Defect | None = None
        self._seed = seed
        self._message_id = ""
        self._said = ReplyText(attempt)
        self._calls = ToolCallAssembly()
        self._whole_inputs: dict[int | None, str] = {}
        """Inputs that came with the beginning of their calls, until pieces of the same come."""
        self._foreign: set[int | None] = set()
        """Where blocks of kinds that do not concern us are open, such as tools that the provider runs itself."""
        self._thoughts: list[_Thought | dict[str, Any]] = []
        self._thought = _Thought()
        self._label = ""
        self._refused = False
        """The provider's own words about a refusal stand for the reply."""
        self._seen = False
        self._stopped = False

    @property
    def finished(self) -> bool:
        """``message_stop`` was seen; nothing follows it."""
        return self._stopped

    @property
    def written(self) -> int:
        """Characters so far."""
        return self._said.size + self._calls.size

    def feed(self, payloads: Sequence[bytes]) -> list[Delta]:
        """Take event payloads in order and return the deltas in them; nothing is read behind ``message_stop`` or a defect."""
        deltas: list[Delta] = []
        self.moved = False
        for payload in payloads:
            try:
                event = decode_event(payload)
            except msgspec.MsgspecError:
                self._take_leniently(payload, deltas)
            else:
                delta = event.delta
                if delta is not None and delta.text and event.type == "content_block_delta":
                    self.moved = self._seen = True
                    self._said.add(delta.text, deltas)
                else:
                    self._take(event, deltas)
            if self.done or self.defect is not None:
                break
        return deltas

    def feed_body(self, body: bytes) -> list[Delta]:
        """Take a message, or an error, that is one JSON document instead of a stream."""
        deltas: list[Delta] = []
        self._take_leniently(body, deltas)
        self.done = True
        return deltas

    def finish(self) -> ReplyParts | Defect:
        """Judge the reply."""
        if self.defect is not None:
            return self.defect
        if not self._stopped or not self._label:
            return FailureReason.INCOMPLETE_STREAM if self._seen else FailureReason.INVALID_RESPONSE
        finish = _FINISH.get(self._label, FinishReason.STOP)
        if finish in _CUT:
            return self._judge_cut(finish)
        for index in list(self._whole_inputs):
            self._take_whole_input(index)
        calls, bad = self._calls.finish(f"{self._message_id}.{self._seed}")
        text, reasoning = self._said.finish(complete=not calls)
        if not calls and not text.strip():
            return FailureReason.INVALID_RESPONSE
        return ReplyParts(
            text=text,
            reasoning=reasoning,
            tool_calls=calls,
            bad_arguments=bad,
            finish=FinishReason.TOOL_CALLS if calls else FinishReason.STOP,
            replay=self._replay(),
        )

    def _judge_cut(self, finish: FinishReason) -> ReplyParts | Defect:
        """A refusal comes from the provider's filter, which stops the model amid its words: they are no answer, and no refusal of its own.

        A full window may leave no room for words.
        """
        text, reasoning = self._said.finish(complete=False)
        if finish is FinishReason.REFUSAL and not self._refused:
            finish = FinishReason.CONTENT_FILTER
        elif self._label == _WINDOW_FULL and not text.strip():
            return FailureReason.CONTEXT_OVERFLOW
        return ReplyParts(
            text=text,
            reasoning=reasoning,
            tool_calls=(),
            bad_arguments={},
            finish=finish,
            calls_cut=finish is FinishReason.LENGTH and (len(self._calls) > 0 or bool(self._whole_inputs)),
            replay=self._replay(),
        )

    def _replay(self) -> tuple[dict[str, Any], ...]:
        blocks = (thought.block() if isinstance(thought, _Thought) else thought for thought in self._thoughts)
        return tuple(block for block in blocks if block is not None)

    def _take_leniently(self, payload: bytes, deltas: list[Delta]) -> None:
        events = decode_leniently(payload)
        if events is not None:
            for event in events:
                self._take(event, deltas)
        elif payload.strip() == b"[DONE]":
            self.done = True  # not of this protocol, and no proof of anything
        else:
            self.defect = FailureReason.INVALID_RESPONSE

    def _take(self, event: Event, deltas: list[Delta]) -> None:
        match event.type:
            case "content_block_delta":
                self._seen = True
                if event.delta is not None and event.index not in self._foreign:
                    self._take_delta(event.index, event.delta, deltas)
            case "content_block_start":
                self._seen = True
                if event.content_block is not None:
                    self._take_start(event.index, event.content_block, deltas)
            case "message_start":
                self._seen = True
                if event.message is not None:
                    self._take_message(event.message)
            case "message_delta":
                self._take_end(event, deltas)
            case "message_stop":
                self._stopped = self.done = True
            case "error":
                self.defect = ProviderError("error" if event.error is None else event.error)
            case _:
                pass  # pings, ends of blocks, and whatever comes to the protocol later

    def _take_message(self, message: Start) -> None:
        self._message_id = message.id or ""
        if message.usage is not None:
            self._take_usage(message.usage)

    def _take_start(self, index: int | None, block: Block, deltas: list[Delta]) -> None:
        self._take_whole_input(index)
        self._foreign.discard(index)
        match block.type:
            case "text":
                self._take_text(block.text or "", deltas)
            case "thinking":
                self._thought = _Thought()
                self._thoughts.append(self._thought)
                self._take_thinking(block.thinking or "", block.signature or "", deltas)
            case "redacted_thinking":
                self.moved = True
                self._thoughts.append({"type": "redacted_thinking", "data": clean_text(block.data or "")})
            case "tool_use":
                self.moved = True
                self._calls.add(index, call_id=block.id or "", name=block.name or "", arguments="")
                self._whole_inputs[index] = block.arguments
            case _:
                self._foreign.add(index)

    def _take_delta(self, index: int | None, delta: BlockDelta, deltas: list[Delta]) -> None:
        self._take_text(delta.text or "", deltas)
        if delta.thinking or delta.signature:
            self._take_thinking(delta.thinking or "", delta.signature or "", deltas)
        if delta.partial_json:
            self.moved = True
            self._whole_inputs.pop(index, None)
            self._calls.add(index, call_id="", name="", arguments=delta.partial_json)

    def _take_text(self, text: str, deltas: list[Delta]) -> None:
        if text:
            self.moved = True
            self._said.add(text, deltas)

    def _take_thinking(self, thinking: str, signature: str, deltas: list[Delta]) -> None:
        self.moved = self.moved or bool(thinking or signature)
        self._thought.thinking.append(thinking)
        self._thought.signature += signature
        self._said.add_reasoning(thinking, deltas)

    def _take_whole_input(self, index: int | None) -> None:
        """The call at ``index`` is over (another begins there, or the message ends) and no pieces of its input came."""
        arguments = self._whole_inputs.pop(index, "")
        if arguments:
            self._calls.add(index, call_id="", name="", arguments=arguments)

    def _take_end(self, event: Event, deltas: list[Delta]) -> None:
        if event.usage is not None:
            self._take_usage(event.usage)
        delta = event.delta
        if delta is not None and delta.stop_reason:
            self._label = delta.stop_reason.lower()
            explanation = (delta.stop_details or {}).get("explanation")
            if _FINISH.get(self._label) is FinishReason.REFUSAL and isinstance(explanation, str) and explanation.strip():
                self._refuse(explanation.strip(), deltas)

    def _refuse(self, explanation: str, deltas: list[Delta]) -> None:
        if not self._said.has_text:
            self._refused = self.moved = True
            self._said.add_visible(explanation, deltas)

    def _take_usage(self, usage: EventUsage) -> None:
        """Counts are cumulative: the highest ones hold. Servers leave out, or set to zero, what they told before."""
        read, written = usage.cache_read_input_tokens or 0, usage.cache_creation_input_tokens or 0
        details = usage.output_tokens_details
        known = self.usage
        self.usage = Usage(
            input_tokens=max(known.input_tokens, (usage.input_tokens or 0) + read + written),
            output_tokens=max(known.output_tokens, usage.output_tokens or 0),
            cached_input_tokens=max(known.cached_input_tokens, read),
            cache_write_tokens=max(known.cache_write_tokens, written),
            reasoning_tokens=max(known.reasoning_tokens, (details.thinking_tokens if details else None) or 0),
        )
