"""A turn as a chat completion: chunks of a stream, or one object."""

from typing import Any, assert_never

import msgspec
from typing_extensions import override

from app.api.facades.endings import diverged, failure_of, finish_of, refused
from app.api.facades.narration import CallView, Diverged, Ended, MessageDone, Piece, Reasoning, Terminal, Text
from app.api.facades.protocol import Form, Identity, total_tokens, with_cost
from app.api.openai_errors import CallError, error_object

DONE = b"data: [DONE]\n\n"
_BETWEEN_MESSAGES = "\n\n"
_encode = msgspec.json.Encoder().encode


class ChatForm(Form):
    """One chat completion. ``include_usage``: the stream ends with a chunk of counts."""

    def __init__(self, identity: Identity, *, include_usage: bool) -> None:
        self._identity = identity
        self._include_usage = include_usage
        self._model = ""
        self._head = b""
        self._tail = b',"usage":null}\n\n' if include_usage else b"}\n\n"
        self._between = self._complete = False
        self._said: list[str] = []
        self._thought: list[str] = []
        self._calls: tuple[CallView, ...] = ()
        self._finish = ""
        self._end: Terminal | None = None
        self.failure: CallError | None = None
        self.over = False

    @override
    def begin(self, model: str) -> bytes:
        self._name(model)
        return self._chunk(b'{"role":"assistant","content":"","refusal":null}')

    @override
    def feed(self, piece: Piece) -> bytes:
        match piece:
            case Text(text=text):
                return self._text(text)
            case Reasoning(text=text):
                self._go_on()
                self._thought.append(text)
                return self._chunk(b'{"reasoning_content":%b}' % _encode(text))
            case MessageDone(text=text, calls=calls):
                self._between = self._between or bool(text)
                self._complete = True
                self._said, self._calls = [text], calls
                return b""
            case Ended():
                return self._ended(piece)
            case Diverged():
                return self.fail(diverged(piece))
        assert_never(piece)

    @override
    def fail(self, error: CallError) -> bytes:
        self.failure, self.over = error, True
        return b"data: " + _encode({"error": error_object(error.status, error.message, code=error.code)}) + b"\n\n"

    @override
    def whole(self) -> dict[str, Any]:
        text = "".join(self._said)
        message: dict[str, Any] = {"role": "assistant", "content": text or (None if self._finish == "tool_calls" else ""), "refusal": None}
        if refused(self._end):
            message["content"], message["refusal"] = None, text
        if self._thought:
            message["reasoning_content"] = "".join(self._thought)
        if self._finish == "tool_calls":
            message["tool_calls"] = [_call(call) for call in self._calls]
        return {
            "id": f"chatcmpl-{self._identity.suffix}",
            "object": "chat.completion",
            "created": self._identity.created,
            "model": self._model,
            "system_fingerprint": None,
            "choices": [{"index": 0, "message": message, "logprobs": None, "finish_reason": self._finish}],
            "usage": self._usage(),
        }

    def _name(self, model: str) -> None:
        """Say that the chunks from here on are this model's."""
        self._model = model
        head = {
            "id": f"chatcmpl-{self._identity.suffix}",
            "object": "chat.completion.chunk",
            "created": self._identity.created,
            "model": model,
            "system_fingerprint": None,
        }
        self._head = b"data: " + _encode(head)[:-1]

    def _text(self, text: str) -> bytes:
        self._go_on()
        self._said.append(text)
        if self._between:  # the first text of another message
            self._between = False
            return self._chunk(b'{"content":%b}' % _encode(_BETWEEN_MESSAGES + text))
        return self._chunk(b'{"content":%b}' % _encode(text))

    def _go_on(self) -> None:
        """Something is said again: if a message was complete, this is the next one."""
        if self._complete:
            self._complete = False
            self._said, self._thought = [], []

    def _ended(self, ended: Ended) -> bytes:
        finish = finish_of(ended)
        self._end = ended.event
        if finish is None:
            return self.fail(failure_of(ended))
        self.over, self._finish = True, finish
        if ended.event.route is not None:
            self._name(ended.event.route.model)
        if ended.state != "completed":
            self._said = [ended.text]
        chunks = [self._calls_chunk()] if finish == "tool_calls" else []
        if refused(self._end):
            chunks.append(self._chunk(b'{"refusal":%b}' % _encode("".join(self._said))))
        chunks.append(self._chunk(b"{}", finish))
        if self._include_usage:
            chunks.append(self._head + b',"choices":[],"usage":' + _encode(self._usage()) + b"}\n\n")
        return b"".join((*chunks, DONE))

    def _calls_chunk(self) -> bytes:
        return self._chunk(_encode({"tool_calls": [{"index": index, **_call(call)} for index, call in enumerate(self._calls)]}))

    def _chunk(self, delta: bytes, finish: str | None = None) -> bytes:
        reason = _encode(finish)
        return b'%b,"choices":[{"index":0,"delta":%b,"logprobs":null,"finish_reason":%b}]%b' % (self._head, delta, reason, self._tail)

    def _usage(self) -> dict[str, Any]:
        if self._end is None:
            raise RuntimeError("an answer was asked for its usage before its end")
        usage = self._end.usage
        counts = {
            "prompt_tokens": usage.input_tokens,
            "completion_tokens": usage.output_tokens,
            "total_tokens": total_tokens(usage),
            "prompt_tokens_details": {"cached_tokens": usage.cached_input_tokens, "audio_tokens": 0},
            "completion_tokens_details": {
                "reasoning_tokens": usage.reasoning_tokens,
                "audio_tokens": 0,
                "accepted_prediction_tokens": 0,
                "rejected_prediction_tokens": 0,
            },
        }
        return with_cost(counts, self._end.cost_usd)


def _call(call: CallView) -> dict[str, Any]:
    return {"id": call.id, "type": "function", "function": call.function}
