"""What counts as a summary: models and servers answer with refusals and error texts that must not become a session's memory."""

import re
from dataclasses import dataclass
from enum import StrEnum
from typing import Final, TypeAlias

from app.context.summary import without_marks
from app.context.tokens import BYTES_PER_TOKEN
from app.context.transcript import wire_size
from app.domain.model import FinishReason


class Fault(StrEnum):
    """Why a reply is no summary."""

    EMPTY = "empty"
    REFUSED = "refused"
    ERROR_TEXT = "error_text"
    TOO_SHORT = "too_short"


@dataclass(frozen=True, slots=True)
class Accepted:
    """The reply is a summary: ``text``, within its bound."""

    text: str


@dataclass(frozen=True, slots=True)
class Rejected:
    """The reply is none: nothing is changed."""

    fault: Fault


Verdict: TypeAlias = Accepted | Rejected

_LARGE_CONTENT: Final = 10_000
"""Tokens of content of which a summary has to say something."""
_SHORTEST: Final = 8
_SHORTEST_OF_LARGE: Final = 24
"""Characters."""

_fence = re.compile(r"\A```[a-z]*\n(.*?)\n?```\Z", re.DOTALL)
_heading = re.compile(r"^#{1,4} \S", re.MULTILINE)
_REFUSALS: Final = (
    "i'm sorry",
    "i am sorry",
    "sorry",
    "i apologi",
    "my apologies",
    "i can't",
    "i cannot",
    "i can not",
    "i won't",
    "i will not",
    "i must decline",
    "i'm unable",
    "i am unable",
    "i'm not able",
    "i am not able",
    "i'm afraid",
    "unfortunately, i",
    "as an ai",
    "as a language model",
)
"""How a text begins that is no summary: summaries do not speak of themselves."""
_ERRORS: Final = (
    "an error occurred",
    "an unexpected error",
    "bad gateway",
    "compaction failed",
    "gateway time",
    "internal error",
    "internal server error",
    "no summary",
    "payment required",
    "rate limit",
    "request timed out",
    "request timeout",
    "service unavailable",
    "summarization failed",
    "summary failed",
    "summary generation failed",
    "summary is not available",
    "summary is unavailable",
    "summary not available",
    "summary unavailable",
    "too many requests",
    "traceback (most recent",
    "doctype html",
    "html>",
)
_error = re.compile(
    r"(\w+ ){0,3}errors?( code)?( \d+)?(\W*:|\W*$| (generating|creating|while|when|during|occurred))"
    r"|(failed|unable|could not|couldn't) (to )?(generat|creat|summari|produc|complet|process|connect|fetch|obtain|reach)"
    r"|(http|status)( error| code| status)*\W*[45]\d\d\b"
    r"|[45]\d\d\W+(bad|forbidden|gateway|internal|payment|service|too|unauthorized)",
)
_not_said = re.compile(r"\A[\W_]+")


def accept(text: str, finish: FinishReason, *, content_tokens: int, limit: int) -> Verdict:
    """Judge the reply to a request for a summary of ``content_tokens``; what is accepted has at most ``limit`` tokens, as it is sent.

    A reply that was cut by its length counts up to its last whole line. A text with headings, as they were asked for, is not taken for
    a refusal or an error because of how it begins.
    """
    plain = _plain(text)
    if finish in (FinishReason.REFUSAL, FinishReason.CONTENT_FILTER):
        return Rejected(Fault.REFUSED)
    if not any(character.isalnum() for character in plain):
        return Rejected(Fault.EMPTY)
    if not _heading.search(plain):
        fault = _fault_of(plain)
        if fault is not None:
            return Rejected(fault)
    if finish is FinishReason.LENGTH:
        plain = plain.rpartition("\n")[0].rstrip() or plain
    if len(plain) < (_SHORTEST_OF_LARGE if content_tokens >= _LARGE_CONTENT else _SHORTEST):
        return Rejected(Fault.TOO_SHORT)
    return Accepted(_bounded(plain, limit * BYTES_PER_TOKEN))


def _fault_of(plain: str) -> Fault | None:
    """What the beginning of a text without headings gives away."""
    begin = _not_said.sub("", plain.partition("\n")[0].lower().replace("\u2019", "'"))
    if begin.startswith(_REFUSALS):
        return Fault.REFUSED
    return Fault.ERROR_TEXT if begin.startswith(_ERRORS) or _error.match(begin) else None


def _plain(text: str) -> str:
    """The text without blanks around it, a fence around all of it, or the marks of the block that it goes into."""
    plain = text.strip()
    fenced = _fence.match(plain)
    return without_marks(fenced[1] if fenced else plain).strip()


def _bounded(text: str, max_bytes: int) -> str:
    """``text`` cut so that it has at most ``max_bytes`` on the wire: it has to fit the next request for a summary as well."""
    if wire_size(text) <= max_bytes:
        return text
    bounded, limit = _beginning(text, max_bytes), max_bytes
    while (size := wire_size(bounded)) > max_bytes:
        limit = min(limit - 1, limit * max_bytes // size)
        bounded = _beginning(text, limit)
    return bounded


def _beginning(text: str, max_bytes: int) -> str:
    """At most ``max_bytes`` of ``text``, up to a line end, a blank or at least a whole character."""
    kept = text.encode("utf-8", "replace")[:max_bytes].decode("utf-8", "ignore")
    for separator in ("\n", " "):
        head = kept.rpartition(separator)[0].rstrip()
        if len(head) >= len(kept) // 2:
            return head
    return kept
