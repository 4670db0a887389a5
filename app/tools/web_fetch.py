"""Fetches what a model wants to read or see: through the guard, each redirect again, within a size and a time."""

import asyncio
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

import httpx

from app.tools.http_body import ACCEPT_ENCODING, Body, UnreadableBodyError, read_body
from app.tools.outbound import Outbound, OutboundRefusedError, read_url

MAX_REDIRECTS: Final = 5
FETCH_S: Final = 30.0
"""All hops together, from the first lookup to the last byte."""


class FetchError(Exception):
    """Nothing was fetched. The text says why and is safe to show."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Fetched:
    """A page or a file, and where it was found in the end."""

    url: str
    body: Body


async def fetch(outbound: Outbound, address: str, *, limit: int, accept: str) -> Fetched:
    """GET ``address`` and at most ``limit`` bytes of its body. Raises FetchError."""
    headers = {"User-Agent": "Mozilla/5.0 (compatible; agent-gateway)", "Accept": accept, "Accept-Encoding": ACCEPT_ENCODING}
    try:
        async with asyncio.timeout(FETCH_S), outbound.client(timeout=httpx.Timeout(FETCH_S, connect=10.0)) as client:
            return await _follow(client, read_url(address), headers, limit)
    except (OutboundRefusedError, UnreadableBodyError) as error:
        failure = str(error)
    except (TimeoutError, httpx.TimeoutException):
        failure = f"The host did not answer within {FETCH_S:g} s."
    except httpx.ConnectError:
        failure = "No connection to the host came about."
    except (httpx.HTTPError, httpx.StreamError):
        failure = "The connection broke, or what came back was not HTTP."
    raise FetchError(failure)


async def _follow(client: httpx.AsyncClient, url: httpx.URL, headers: Mapping[str, str], limit: int) -> Fetched:
    for _ in range(MAX_REDIRECTS + 1):
        async with client.stream("GET", url, headers=headers) as response:
            if response.next_request is None:
                return await _answer(url, response, limit)
            url = response.next_request.url
    raise FetchError(f"The address redirects more than {MAX_REDIRECTS} times.")


async def _answer(url: httpx.URL, response: httpx.Response, limit: int) -> Fetched:
    if not response.is_success:
        raise FetchError(f"The host answered {response.status_code}.")
    return Fetched(url=str(url), body=await read_body(response, limit))
