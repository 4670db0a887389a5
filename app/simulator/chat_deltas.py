"""The words of a Chat Completions stream: deltas of a script, and the events around them."""

import re
from typing import Any

import msgspec

from app.simulator.choice import filler
from app.simulator.reply import NUMBER_MARK
from app.simulator.script import Script, ScriptedCall

ANSWER_ID = f"chatcmpl-sim-{NUMBER_MARK.decode()}"
_TOKEN = re.compile(r"\s*\S{1,16}|\s+")
_CUT_FINISHES = frozenset({"length", "content_filter"})


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
    encoded = [_field("reasoning_content", token) for token in _tokens(filler(script.reasoning_tokens))]
    encoded.extend(_field("content", token) for token in _tokens(script.text or ""))
    encoded.extend(_field("refusal", token) for token in _tokens(script.refusal or ""))
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
        message["tool_calls"] = [_call_object(index, call, _arguments(script, index, call)) for index, call in enumerate(script.calls)]
    return message


def _tokens(text: str) -> list[str]:
    return _TOKEN.findall(text)


def _field(name: str, token: str) -> bytes:
    return b'{"%b":%b}' % (name.encode(), msgspec.json.encode(token))


def _call_object(index: int, call: ScriptedCall, arguments: str) -> dict[str, Any]:
    call_id = f"call_{NUMBER_MARK.decode()}_{index}" if call.id is None else call.id
    return {"id": call_id, "type": "function", "function": {"name": call.name, "arguments": arguments}}


def _arguments(script: Script, index: int, call: ScriptedCall) -> str:
    """Return the arguments; a truncated answer loses the second half of its last call's."""
    is_last = index == len(script.calls) - 1
    if is_last and script.finish in _CUT_FINISHES:
        return call.arguments[: len(call.arguments) // 2]
    return call.arguments


def _call_deltas(script: Script, index: int, call: ScriptedCall) -> list[bytes]:
    encoded = [msgspec.json.encode({"tool_calls": [{"index": index, **_call_object(index, call, "")}]})]
    arguments = _arguments(script, index, call)
    size = max(1, -(-len(arguments) // script.argument_pieces))
    for at in range(0, len(arguments), size):
        piece = {"index": index, "function": {"arguments": arguments[at : at + size]}}
        encoded.append(msgspec.json.encode({"tool_calls": [piece]}))
    return encoded
