"""Reads a turn's event stream, as a client of the gateway would."""

from collections.abc import Iterator
from typing import Any

import httpx
import msgspec

TERMINAL = frozenset({"turn.completed", "turn.interrupted", "turn.failed"})


class Event(msgspec.Struct, frozen=True):
    """One event: its number, its type and its data."""

    seq: int
    type: str
    data: dict[str, Any]


def events(response: httpx.Response) -> Iterator[Event]:
    """The events of a stream as they come; comments and hints for browsers are passed over."""
    fields: dict[str, str] = {}
    for line in response.iter_lines():
        if line and not line.startswith(":"):
            name, _, value = line.partition(": ")
            fields[name] = value
        elif not line and "data" in fields:
            yield Event(int(fields["id"]), fields["event"], msgspec.json.decode(fields["data"]))
            fields.clear()
