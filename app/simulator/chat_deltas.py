"""The words of a Chat Completions stream: deltas of a script, and the events around them."""

from typing import Any

import msgspec

from app.simulator.choice import filler
from app.simulator.reply import NUMBER_MARK
from app.simulator.script import Script, ScriptedCall
from app.simulator.tokens import argument_tokens, arguments_of, tokens_of

ANSWER_ID = f"chatcmpl-sim-{NUMBER_MARK.decode()}"


class StreamText:
    """Writes the events of one stream; everything but the delta is prepared once."""

    def __init__(self, model: str, created: int) -> None:
        identity = {"id": ANSWER_ID, "object": "chat.completion.chunk", "created": created, "model": model}
        self._start = b"data: " + msgspec.json.encode(identity)[:-1]

    def opening(self, *, has_calls: bool) -> bytes:
        """Encode the first event: the role, and no content yet."""
        return self.delta(msgspec.json.encode({"role": "assistant", "content": None if has_calls else ""}))

    def delta(self, delta: bytes) -> bytes:
        """Encode the event of an encoded delta object."""
        return b'%b,"choices":[{"index":0,"delta":%b,"finish_reason":null}]}\n\n' % (self._start, delta)

    def finish(self, reason: str) -> bytes:
        """Encode the event with the finish reason."""
        return b'%b,"choices":[{"index":0,"delta":{},"finish_reason":"%b"}]}\n\n' % (self._start, reason.encode())

    def usage(self, usage: dict[str, Any]) -> bytes:
        """Encode the usage event, which has no choices."""
        return b'%b,"choices":[],"usage":%b}\n\n' % (self._start, msgspec.json.encode(usage))


def deltas(script: Script) -> list[bytes]:
    """List the encoded deltas of a resolved script; each counts as one token."""
    encoded = [_field("reasoning_content", token) for token in tokens_of(filler(script.reasoning_tokens))]
    encoded.extend(_field("content", token) for token in tokens_of(script.text or ""))
    encoded.extend(_field("refusal", token) for token in tokens_of(script.refusal or ""))
    for index, call in enumerate(script.calls):
        encoded.extend(_call_deltas(script, index, call))
    return encoded


def message_of(script: Script) -> dict[str, Any]:
    """Make the assistant message of a resolved script, for the answer that is not streamed."""
    message: dict[str, Any] = {"role": "assistant", "content": script.text or (None if script.calls or script.refusal else "")}
    message["refusal"] = script.refusal
    if script.reasoning_tokens:
        message["reasoning_content"] = filler(script.reasoning_tokens)
    if script.calls:
        message["tool_calls"] = [_call_object(index, call, arguments_of(script, index)) for index, call in enumerate(script.calls)]
    return message


def _field(name: str, token: str) -> bytes:
    return b'{"%b":%b}' % (name.encode(), msgspec.json.encode(token))


def _call_object(index: int, call: ScriptedCall, arguments: str) -> dict[str, Any]:
    call_id = f"call_{NUMBER_MARK.decode()}_{index}" if call.id is None else call.id
    return {"id": call_id, "type": "function", "function": {"name": call.name, "arguments": arguments}}


def _call_deltas(script: Script, index: int, call: ScriptedCall) -> list[bytes]:
    encoded = [msgspec.json.encode({"tool_calls": [{"index": index, **_call_object(index, call, "")}]})]
    pieces = ({"index": index, "function": {"arguments": piece}} for piece in argument_tokens(script, index))
    encoded.extend(msgspec.json.encode({"tool_calls": [piece]}) for piece in pieces)
    return encoded
