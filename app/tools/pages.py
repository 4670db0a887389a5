"""Web pages as text: HTML through a parser in a process of its own, other text as it is."""

import asyncio
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import msgspec

from app.tools.outbound import Outbound
from app.tools.web_fetch import FetchError, fetch

MAX_BYTES: Final = 3_000_000
"""What is read of a page; the rest is left out."""
PARSE_S: Final = 15.0
_PARSERS: Final = 2
"""Processes at a time: each takes some 60 MB and a processor."""
_PROGRAM: Final = Path(__file__).with_name("page_text.py")
_ACCEPT: Final = "text/html,application/xhtml+xml;q=0.9,text/*;q=0.8,application/json;q=0.7,*/*;q=0.1"
_HTML: Final = frozenset({"text/html", "application/xhtml+xml", ""})
_PDF: Final = "application/pdf"


class PageError(Exception):
    """There is no text of the page. The text of the error says why and is safe to show."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Page:
    """The text of a page. ``cut``: the page is longer than what was read of it."""

    url: str
    title: str
    text: str
    cut: bool


class _Parsed(msgspec.Struct, frozen=True):
    title: str
    text: str


class Pages:
    """Reads pages. ``parse_s`` is what a page may take to be parsed."""

    def __init__(self, outbound: Outbound, *, parse_s: float = PARSE_S) -> None:
        self._outbound = outbound
        self._parse_s = parse_s
        self._parsers = asyncio.Semaphore(_PARSERS)

    async def read(self, address: str) -> Page:
        """The page at ``address``. Raises PageError. Cancellation closes the socket and ends the parser."""
        try:
            fetched = await fetch(self._outbound, address, limit=MAX_BYTES, accept=_ACCEPT)
        except FetchError as error:
            raise PageError(str(error)) from None
        body = fetched.body
        if body.media_type == _PDF or body.data.startswith(b"%PDF-"):
            raise PageError("This is a PDF; the gateway reads pages and text only.")
        text = body.text()
        if text is None:
            raise PageError(f"This is no text: {body.placeholder()}")
        if body.media_type not in _HTML:
            return Page(url=fetched.url, title="", text=text.strip(), cut=body.cut)
        async with self._parsers:
            parsed = await _parsed(fetched.url, text, self._parse_s)
        return Page(url=fetched.url, title=parsed.title, text=parsed.text, cut=body.cut)


async def _parsed(url: str, html: str, within_s: float) -> _Parsed:
    # Isolated (-I) and without the environment: the parser of strangers' pages has no use for the gateway's secrets.
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-I", str(_PROGRAM), stdin=asyncio.subprocess.PIPE, stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.DEVNULL, env={},
    )  # fmt: skip
    try:
        async with asyncio.timeout(within_s):
            output, _ = await process.communicate(msgspec.json.encode({"url": url, "html": html}))
    except TimeoutError:
        raise PageError("The page could not be parsed in time.") from None
    finally:
        if process.returncode is None:
            process.kill()
            await process.wait()
    try:
        return msgspec.json.decode(output, type=_Parsed)
    except msgspec.MsgspecError:
        raise PageError("The page could not be parsed.") from None
