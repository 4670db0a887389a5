"""The words by which messages are found: pure, so that index and query cut text alike, whatever the locale of the database.

Text is brought to one form (NFKC, case folded) and cut at everything that is no letter or digit. Scripts that put no spaces between
words are cut into overlapping pairs of characters, and the last character alone, so that any part of a phrase is found.
"""

import re
import unicodedata

import msgspec

from app.domain.messages import Message, content_text

MAX_CHARACTERS = 8_000
"""Of one message; of a longer one its beginning and its end are findable."""
_TAIL = 2_000
MAX_QUERY_TERMS = 16
MAX_TERM = 64
"""Characters of a term; of a longer one its beginning counts."""
_PREFIX_FROM = 4
"""A word of a query with so many letters also finds words that begin with it: there is no stemming."""

_WORD = re.compile(r"[^\W_]+")
_UNSPACED = "\u0e00-\u0eff\u1000-\u109f\u1780-\u17ff\u3005-\u3007\u3040-\u30ff\u3400-\u4dbf\u4e00-\u9fff\uac00-\ud7af\uf900-\ufaff"
"""Thai, Lao, Burmese, Khmer, Kana, Han, Hangul (which has spaces, and endings that stick to its words)."""
_RUN = re.compile(f"[{_UNSPACED}\U00020000-\U0003ffff]+|[^{_UNSPACED}\U00020000-\U0003ffff]+")
_ASCII_WORDS = bytes(code if chr(code).isalnum() and chr(code).isascii() else ord(" ") for code in range(256))
_UNSPACED_START = re.compile(f"[{_UNSPACED}\U00020000-\U0003ffff]")


class QueryTerm(msgspec.Struct, frozen=True):
    """A word of a query; with ``prefix`` it stands for every term that begins with it."""

    text: str
    prefix: bool


def message_text(message: Message) -> str:
    """What is said in ``message``, calls and results of tools included, thoughts left out."""
    parts = [content_text(message.content)]
    parts += [f"{call.name} {call.arguments}" for call in message.tool_calls]
    if message.tool_name:
        parts.insert(0, message.tool_name)
    return "\n".join(part for part in parts if part)


def terms(text: str) -> set[str]:
    """The terms by which ``text`` is found; none of them has a space or an underscore."""
    if len(text) > MAX_CHARACTERS:
        text = f"{text[: MAX_CHARACTERS - _TAIL]} {text[-_TAIL:]}"
    if text.isascii():
        # Every message passes here: half the time of the expression below.
        words = set(text.encode().lower().translate(_ASCII_WORDS).split())
        return {word[:MAX_TERM].decode() for word in words}
    folded = _folded(text)
    found = set(_WORD.findall(folded))
    if _UNSPACED_START.search(folded) is None:
        return {word[:MAX_TERM] for word in found}
    return {term for word in found for run in _RUN.findall(word) for term in _terms_of(run)}


def query_terms(query: str) -> tuple[QueryTerm, ...]:
    """The terms of a query in their order, each once, at most :data:`MAX_QUERY_TERMS`."""
    found: dict[str, QueryTerm] = {}
    for word in _WORD.findall(_folded(query[:MAX_CHARACTERS])):
        for run in _RUN.findall(word):
            for term in _query_terms_of(run):
                found.setdefault(term.text, term)
    return tuple(found.values())[:MAX_QUERY_TERMS]


def telling_terms(wanted: tuple[QueryTerm, ...]) -> tuple[QueryTerm, ...]:
    """Those of a query's terms that say most, for a search that takes any of them: short words are mostly in every message."""
    long = tuple(term for term in wanted if len(term.text) >= _PREFIX_FROM or not term.text.isascii() or term.text.isdigit())
    return long or wanted


def matches(found: set[str], term: QueryTerm) -> bool:
    """Whether a message with the terms ``found`` has ``term``."""
    return term.text in found or (term.prefix and any(each.startswith(term.text) for each in found))


def _folded(text: str) -> str:
    return unicodedata.normalize("NFKC", unicodedata.normalize("NFKC", text).casefold())


def _terms_of(run: str) -> list[str]:
    if not _UNSPACED_START.match(run):
        return [run[:MAX_TERM]]
    return [run[place : place + 2] for place in range(len(run))]


def _query_terms_of(run: str) -> list[QueryTerm]:
    if not _UNSPACED_START.match(run):
        word = run[:MAX_TERM]
        return [QueryTerm(word, prefix=len(word) >= _PREFIX_FROM and word.isalpha())]
    if len(run) == 1:
        return [QueryTerm(run, prefix=True)]
    return [QueryTerm(run[place : place + 2], prefix=False) for place in range(len(run) - 1)]
