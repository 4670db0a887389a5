"""The words of a Responses stream: the output items of a script, and the events that tell them."""

import hashlib
from collections.abc import Callable
from typing import Any

import msgspec

from app.simulator.choice import filler
from app.simulator.reply import NUMBER_MARK
from app.simulator.script import Script
from app.simulator.tokens import argument_tokens, arguments_of, tokens_of

Item = dict[str, Any]

_MARK = NUMBER_MARK.decode()
RESPONSE_ID = f"resp_sim_{_MARK}"
_SEALED = "sim-enc"
_SEAL_PARTS = 3
_SEAL_DIGITS = 24
_CUT_FINISHES = frozenset({"length", "content_filter"})


def sealed_reasoning(model: str, tokens: int) -> str:
    """What stands for encrypted reasoning: made for one model, and recognised when it comes back."""
    return f"{_SEALED}.{tokens}.{_seal(model, str(tokens))}"


def is_sealed(model: str, content: str) -> bool:
    """Say whether this is reasoning that the simulator gave out under this model's name."""
    parts = content.split(".")
    return len(parts) == _SEAL_PARTS and parts[0] == _SEALED and parts[2] == _seal(model, parts[1])


def event(kind: str, **fields: Any) -> bytes:
    """Encode one event."""
    return b"event: %b\ndata: %b\n\n" % (kind.encode(), msgspec.json.encode({"type": kind, **fields}))


def output_of(script: Script, model: str) -> list[Item]:
    """List the output items of a resolved script."""
    items: list[Item] = []
    if script.reasoning_tokens:
        items.append(
            {
                "id": f"rs_{_MARK}",
                "type": "reasoning",
                "summary": [{"type": "summary_text", "text": filler(script.reasoning_tokens)}],
                "encrypted_content": sealed_reasoning(model, script.reasoning_tokens),
            }
        )
    parts = [_text_part(script.text)] if script.text else []
    if script.refusal:
        parts.append({"type": "refusal", "refusal": script.refusal})
    cut = script.finish in _CUT_FINISHES
    if parts:
        status = "incomplete" if cut and not script.calls else "completed"
        items.append({"id": f"msg_{_MARK}", "type": "message", "role": "assistant", "status": status, "content": parts})
    for index, call in enumerate(script.calls):
        items.append(
            {
                "id": f"fc_{_MARK}_{index}",
                "type": "function_call",
                "status": "incomplete" if cut and index == len(script.calls) - 1 else "completed",
                "call_id": f"call_{_MARK}_{index}" if call.id is None else call.id,
                "name": call.name,
                "arguments": arguments_of(script, index),
            }
        )
    return items


def tokens_as_events(script: Script, model: str) -> list[bytes]:
    """List the bytes of each token: its delta, after what begins its item and before what ends it."""
    tokens: list[bytes] = []
    calls = 0
    for place, item in enumerate(output_of(script, model)):
        match item["type"]:
            case "reasoning":
                tokens.extend(_reasoning_events(place, item))
            case "message":
                tokens.extend(_message_events(place, item))
            case _:
                tokens.extend(_call_events(place, item, argument_tokens(script, calls)))
                calls += 1
    return tokens


def _seal(model: str, content: str) -> str:
    return hashlib.sha256(f"{model}\n{content}".encode()).hexdigest()[:_SEAL_DIGITS]


def _text_part(text: str) -> Item:
    return {"type": "output_text", "text": text, "annotations": [], "logprobs": []}


def _delta_writer(kind: str, **fields: Any) -> Callable[[str], bytes]:
    """Prepare all of an event but its delta."""
    start = b"event: %b\ndata: %b" % (kind.encode(), msgspec.json.encode({"type": kind, **fields})[:-1])
    return lambda delta: b'%b,"delta":%b}\n\n' % (start, msgspec.json.encode(delta))


def _framed(begin: bytes, deltas: list[bytes], end: bytes) -> list[bytes]:
    """Let the first token bring what comes before it, and the last one what follows."""
    framed = deltas or [b""]
    framed[0] = begin + framed[0]
    framed[-1] += end
    return framed


def _reasoning_events(place: int, item: Item) -> list[bytes]:
    where = {"item_id": item["id"], "output_index": place, "summary_index": 0}
    part = item["summary"][0]
    write = _delta_writer("response.reasoning_summary_text.delta", **where)
    begun = {"id": item["id"], "type": "reasoning", "summary": []}
    begin = event("response.output_item.added", output_index=place, item=begun) + event(
        "response.reasoning_summary_part.added", **where, part={"type": "summary_text", "text": ""}
    )
    end = b"".join(
        (
            event("response.reasoning_summary_text.done", **where, text=part["text"]),
            event("response.reasoning_summary_part.done", **where, part=part),
            event("response.output_item.done", output_index=place, item=item),
        )
    )
    return _framed(begin, [write(token) for token in tokens_of(part["text"])], end)


def _message_events(place: int, item: Item) -> list[bytes]:
    tokens: list[bytes] = []
    for number, part in enumerate(item["content"]):
        tokens.extend(_part_events({"item_id": item["id"], "output_index": place, "content_index": number}, part))
    begun = {**item, "status": "in_progress", "content": []}
    begin = event("response.output_item.added", output_index=place, item=begun)
    return _framed(begin, tokens, event("response.output_item.done", output_index=place, item=item))


def _part_events(where: Item, part: Item) -> list[bytes]:
    is_text = part["type"] == "output_text"
    key, kind = ("text", "response.output_text") if is_text else ("refusal", "response.refusal")
    text = part[key]
    write = _delta_writer(f"{kind}.delta", **where, **({"logprobs": []} if is_text else {}))
    begin = event("response.content_part.added", **where, part={**part, key: ""})
    end = event(f"{kind}.done", **where, **{key: text}) + event("response.content_part.done", **where, part=part)
    return _framed(begin, [write(token) for token in tokens_of(text)], end)


def _call_events(place: int, item: Item, pieces: list[str]) -> list[bytes]:
    """The announcement of a call is a token of its own."""
    where = {"item_id": item["id"], "output_index": place}
    write = _delta_writer("response.function_call_arguments.delta", **where)
    begin = event("response.output_item.added", output_index=place, item={**item, "status": "in_progress", "arguments": ""})
    end = event("response.function_call_arguments.done", **where, arguments=item["arguments"]) + event(
        "response.output_item.done", output_index=place, item=item
    )
    return _framed(b"", [begin, *(write(piece) for piece in pieces)], end)
