"""The words of a Messages stream: the blocks of a script, and the events around them."""

import json
from typing import Any

import msgspec

from app.simulator.choice import filler
from app.simulator.reply import NUMBER_MARK
from app.simulator.script import Script
from app.simulator.signatures import call_prefix, sign
from app.simulator.tokens import argument_tokens, arguments_of, tokens_of

MESSAGE_ID = f"msg_sim_{NUMBER_MARK.decode()}"
PING = b'event: ping\ndata: {"type":"ping"}\n\n'
STOP = b'event: message_stop\ndata: {"type":"message_stop"}\n\n'
EMPTY_DELTA = b'event: content_block_delta\ndata: {"type":"content_block_delta","index":0,"delta":{"type":"text_delta","text":""}}\n\n'


def start_event(model: str, usage: dict[str, Any]) -> bytes:
    """Encode the first event: the message, still empty."""
    message: dict[str, Any] = {
        "id": MESSAGE_ID,
        "type": "message",
        "role": "assistant",
        "model": model,
        "content": [],
        "stop_reason": None,
        "stop_sequence": None,
        "usage": usage,
    }
    return b'event: message_start\ndata: {"type":"message_start","message":%b}\n\n' % msgspec.json.encode(message)


def ending_of(stop_reason: str, refusal: str | None) -> dict[str, Any]:
    """The members of a message that tell of its end. A refusal is explained there: it is no text of the model's."""
    ending: dict[str, Any] = {"stop_reason": stop_reason, "stop_sequence": None}
    if refusal is not None:
        ending["stop_details"] = {"type": "refusal", "category": None, "explanation": refusal}
    return ending


def end_event(ending: dict[str, Any], usage: dict[str, Any]) -> bytes:
    """Encode the event with the stop reason."""
    delta = msgspec.json.encode(ending)
    return b'event: message_delta\ndata: {"type":"message_delta","delta":%b,"usage":%b}\n\n' % (delta, msgspec.json.encode(usage))


def error_event(error: bytes) -> bytes:
    """Encode an error, given as the provider's whole error object, in place of the rest of a stream."""
    return b"event: error\ndata: " + error + b"\n\n"


def block_events(script: Script, model: str) -> list[bytes]:
    """List the events of a resolved script's blocks, those of one token together.

    A block's beginning and end go with its first and last token; a call begins with a token of its own.
    """
    events: list[bytes] = []
    index = 0
    thinking = filler(script.reasoning_tokens)
    if thinking:
        pieces = [_delta(index, "thinking_delta", "thinking", token) for token in tokens_of(thinking)]
        pieces[-1] += _delta(index, "signature_delta", "signature", sign(model, thinking))
        events.extend(_block(index, {"type": "thinking", "thinking": "", "signature": ""}, pieces))
        index += 1
    if script.text:
        pieces = [_delta(index, "text_delta", "text", token) for token in tokens_of(script.text)]
        events.extend(_block(index, {"type": "text", "text": ""}, pieces))
        index += 1
    for place in range(len(script.calls)):
        pieces = [_delta(index, "input_json_delta", "partial_json", piece) for piece in argument_tokens(script, place)]
        events.extend(_block(index, {**_call(script, place), "input": {}}, [b"", *pieces]))
        index += 1
    return events


def content_of(script: Script, model: str) -> list[dict[str, Any]]:
    """List the blocks of a resolved script, for the answer that is not streamed."""
    blocks: list[dict[str, Any]] = []
    thinking = filler(script.reasoning_tokens)
    if thinking:
        blocks.append({"type": "thinking", "thinking": thinking, "signature": sign(model, thinking)})
    if script.text:
        blocks.append({"type": "text", "text": script.text})
    blocks.extend({**_call(script, place), "input": _input(arguments_of(script, place))} for place in range(len(script.calls)))
    return blocks


def _call(script: Script, place: int) -> dict[str, Any]:
    call = script.calls[place]
    made_up = f"{call_prefix(thoughtful=script.reasoning_tokens > 0)}{NUMBER_MARK.decode()}_{place}"
    return {"type": "tool_use", "id": made_up if call.id is None else call.id, "name": call.name}


def _input(arguments: str) -> Any:
    """Read arguments; what is no JSON goes out as text."""
    try:
        return json.loads(arguments)
    except ValueError:
        return arguments


def _block(index: int, start: dict[str, Any], pieces: list[bytes]) -> list[bytes]:
    opening = b'event: content_block_start\ndata: {"type":"content_block_start","index":%d,"content_block":%b}\n\n'
    first, *rest = pieces
    events = [opening % (index, msgspec.json.encode(start)) + first, *rest]
    events[-1] += b'event: content_block_stop\ndata: {"type":"content_block_stop","index":%d}\n\n' % index
    return events


def _delta(index: int, kind: str, member: str, piece: str) -> bytes:
    delta = b'{"type":"%b","%b":%b}' % (kind.encode(), member.encode(), msgspec.json.encode(piece))
    return b'event: content_block_delta\ndata: {"type":"content_block_delta","index":%d,"delta":%b}\n\n' % (index, delta)
