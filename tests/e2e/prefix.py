"""The prefix rule as a check: over (tools, system, messages) as sent, a session's request extends the one before on the same route.

Give :func:`prefix_breaks` what the simulator recorded of one session, in order; tests assert that it returns nothing.
"""

from collections.abc import Iterable
from itertools import pairwise

import msgspec

from app.simulator.log import RecordedRequest


class _Body(msgspec.Struct):
    """The parts that a provider caches, as raw bytes, under the names that the API modes give them."""

    messages: msgspec.Raw = msgspec.Raw(b"")
    input: msgspec.Raw = msgspec.Raw(b"")
    tools: msgspec.Raw = msgspec.Raw(b"")
    system: msgspec.Raw = msgspec.Raw(b"")
    """Where an API mode keeps the system prompt apart; in chat completions it is the first message."""
    instructions: msgspec.Raw = msgspec.Raw(b"")


_decode = msgspec.json.Decoder(_Body).decode
REFUSED = (400, 413)
_CACHE_MARKER = b',"cache_control":{"type":"ephemeral"}'
_OPEN_MESSAGE = b"]}"
_LAST_BLOCK = b"}" + _OPEN_MESSAGE


def sent_prefix(raw: bytes) -> bytes:
    """The bytes of (tools, system, messages) of a request body, without cache markers and the bracket that closes the messages."""
    body = _decode(raw.replace(_CACHE_MARKER, b""))
    messages = bytes(body.messages) or bytes(body.input)
    assert messages.startswith(b"[")
    assert messages.endswith(b"]")
    return b"\n".join((bytes(body.tools), bytes(body.system) or bytes(body.instructions), messages[:-1]))


def extends(longer: bytes, shorter: bytes, *, joins: bool = False) -> bool:
    """Whether the request ``longer`` begins with all of ``shorter``, cut between two messages.

    ``joins``: of a protocol that joins neighbouring messages of one role the last message itself may have grown at its end.
    """
    before, after = sent_prefix(shorter), sent_prefix(longer)
    if after == before or after.startswith(before + b","):
        return True
    return joins and before.endswith(_LAST_BLOCK) and after.startswith(before[: -len(_OPEN_MESSAGE)] + b",")


def prefix_breaks(requests: Iterable[RecordedRequest]) -> list[str]:
    """Every place where a request is no extension of the one before it on its route; empty when the rule holds.

    A route is told by path, credential and model. A request that was refused for what is in it counts for nothing: no provider has it
    in its cache, and what it added leaves the context.
    """
    routes: dict[tuple[str, str, str], list[RecordedRequest]] = {}
    for request in (request for request in requests if request.status not in REFUSED):
        credential = request.headers.get("x-api-key") or request.headers.get("authorization", "")
        route = (request.path, credential, request.body["model"])
        routes.setdefault(route, []).append(request)
    return [
        f"request {later.number} on {route[2]} differs from request {earlier.number} at byte {_difference(earlier.raw, later.raw)}"
        for route, sent in routes.items()
        for earlier, later in pairwise(sent)
        if not extends(later.raw, earlier.raw, joins=route[0].endswith("/messages"))
    ]


def _difference(earlier: bytes, later: bytes) -> str:
    before, after = sent_prefix(earlier), sent_prefix(later)
    place = next((at for at, (one, other) in enumerate(zip(before, after, strict=False)) if one != other), min(len(before), len(after)))
    return f"{place}: {before[max(0, place - 60) : place + 60]!r} became {after[max(0, place - 60) : place + 60]!r}"
