"""One turn over HTTP, for the checks: posted, and posted again under the same key until its end has been read."""

import asyncio
from collections.abc import Sequence

import httpx
import msgspec

_AGAIN_S = 0.2
_ENDS = ("turn.completed", "turn.interrupted", "turn.failed")


class Usage(msgspec.Struct, frozen=True):
    """What the gateway says that a turn used."""

    input_tokens: int
    output_tokens: int


class End(msgspec.Struct, frozen=True):
    """A turn's last event."""

    type: str
    reason: str
    usage: Usage


_end = msgspec.json.Decoder(End)


def client_of(key: str) -> httpx.AsyncClient:
    """A client of one tenant, without limits but for a stream that has even no heartbeats."""
    limits = httpx.Limits(max_connections=None, max_keepalive_connections=None)
    return httpx.AsyncClient(headers={"Authorization": f"Bearer {key}"}, timeout=httpx.Timeout(60, pool=None), limits=limits)


async def new_session(http: httpx.AsyncClient, url: str) -> str:
    """A session without tools."""
    response = await http.post(f"{url}/sessions", json={"toolsets": []})
    return str(response.raise_for_status().json()["id"])


async def run_turn(http: httpx.AsyncClient, urls: Sequence[str], session_id: str, *, text: str, key: str) -> End:
    """The end of the turn that `key` names, from whichever of the gateways lives. Raises HTTPStatusError when it is refused."""
    number = 0
    while True:
        url = f"{urls[number % len(urls)]}/sessions/{session_id}/turns"
        number += 1
        try:
            async with http.stream("POST", url, json={"input": text}, headers={"Idempotency-Key": key}) as response:
                end = await _read(response.raise_for_status())
        except httpx.TransportError:
            end = None
        if end is not None:
            return end
        await asyncio.sleep(_AGAIN_S)


async def _read(response: httpx.Response) -> End | None:
    """The end; none when the stream broke off."""
    event = ""
    async for line in response.aiter_lines():
        name, _, value = line.partition(": ")
        if name == "event":
            event = value
        elif name == "data" and event in _ENDS:
            return _end.decode(value)
    return None
