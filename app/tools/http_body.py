"""Bodies of HTTP answers: read up to a limit, unpacked up to the same limit, and as text where they are text."""

import codecs
import re
import zlib
from dataclasses import dataclass
from typing import Final

import httpx

ACCEPT_ENCODING: Final = "gzip"
"""What a request has to say for :func:`read_body` to understand the answer."""
_GZIP_OR_ZLIB: Final = 32 + zlib.MAX_WBITS
_TEXT_TYPES: Final = re.compile(r"text/.*|application/(?:json|xml|xhtml\+xml|javascript|x-www-form-urlencoded|.*\+(?:json|xml))|")
_CHARSET: Final = re.compile(r"charset\s*=\s*[\"']?([A-Za-z0-9._:-]{1,40})", re.IGNORECASE)
_META_CHARSET: Final = re.compile(rb"<meta[^>]{0,200}charset\s*=\s*[\"']?([A-Za-z0-9._:-]{1,40})", re.IGNORECASE)
_META_BYTES: Final = 2_048


class UnreadableBodyError(Exception):
    """A body that cannot be unpacked. The text is safe to show."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Body:
    """What was read. ``cut``: there was more than the limit. ``media_type`` is in lower case, empty when the answer names none."""

    data: bytes
    cut: bool
    media_type: str
    charset: str | None

    def text(self) -> str | None:
        """The text; ``None`` when it is not text."""
        if _TEXT_TYPES.fullmatch(self.media_type) is None:
            return None
        text = self._decoded()
        return None if text is None or "\x00" in text else text.removeprefix("\ufeff")

    def placeholder(self) -> str:
        """What stands for a body that is not text."""
        kind = f" ({self.media_type[:100]})" if self.media_type else ""
        return f"[binary data of {'more than ' if self.cut else ''}{len(self.data):,} bytes{kind}, not shown]"

    def _decoded(self) -> str | None:
        named = self.charset
        if named is None and (found := _META_CHARSET.search(self.data[:_META_BYTES])) is not None:
            named = found[1].decode("ascii")
        try:
            if not self.media_type:  # anything may be in it: what is no UTF-8 is no text
                return codecs.getincrementaldecoder("utf-8")().decode(self.data, final=not self.cut)
            return self.data.decode(_known(named) or "utf-8", "replace")
        except UnicodeError:  # some codecs know no replacement
            return self.data.decode("utf-8", "replace") if self.media_type else None


async def read_body(response: httpx.Response, limit: int) -> Body:
    """Read at most ``limit`` bytes, unpacked ones where the body is packed; the rest is left unread.

    Raises UnreadableBodyError for a packing that was not asked for or is broken, httpx.TransportError when the connection breaks.
    """
    encoding = response.headers.get("content-encoding", "identity").strip().lower()
    if encoding not in {"identity", "gzip", "x-gzip", "deflate"}:
        raise UnreadableBodyError("The answer is packed in a way that was not asked for.")
    unpacker = None if encoding == "identity" else zlib.decompressobj(_GZIP_OR_ZLIB)
    data = bytearray()
    async for chunk in response.aiter_raw():
        room = limit + 1 - len(data)
        data += chunk[:room] if unpacker is None else _unpacked(unpacker, chunk, room)
        if len(data) > limit:
            break
    return body_of(response.headers, bytes(data), limit)


def body_of(headers: httpx.Headers, data: bytes, limit: int) -> Body:
    """What ``data``, the first bytes of an answer, are by its ``headers``; there is more when they are longer than ``limit``."""
    content_type = headers.get("content-type", "")
    charset = _CHARSET.search(content_type)
    return Body(
        data=data[:limit],
        cut=len(data) > limit,
        media_type=content_type.partition(";")[0].strip().lower(),
        charset=None if charset is None else charset[1],
    )


def _unpacked(unpacker: "zlib._Decompress", chunk: bytes, room: int) -> bytes:
    try:
        return unpacker.decompress(chunk, room)  # a few bytes may stand for gigabytes: never more than there is room for
    except zlib.error:
        raise UnreadableBodyError("The answer's packing is broken.") from None


def _known(charset: str | None) -> str | None:
    """The charset, if text can be decoded with it."""
    try:
        if charset is not None:
            b"four".decode(charset, "replace")  # raises for what is unknown, and for codecs that are not of text
    except (LookupError, UnicodeError):
        return None
    return charset
