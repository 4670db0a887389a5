"""What of a provider's own words may be shown: short, one line, without credentials, addresses, paths or markup."""

import base64
import re
from typing import Final
from urllib.parse import unquote

from app.domain.messages import clean_text

MAX_LENGTH: Final = 200
_GAP: Final = "[redacted]"
_MIN_SECRET: Final = 6
"""Shorter pieces of a credential are too common in ordinary text to be told from it."""
_MIN_RUN: Final = 12
"""Characters in a row that a longer word shares with a secret by no chance."""
_GROUP: Final = 4
"""Characters of base64 that are decoded together."""

_markup: Final = re.compile(r"\s*<(?:!doctype|!--|\?xml|/?[a-z][a-z0-9]*[\s/>])", re.IGNORECASE)
_tag: Final = re.compile(r"<(?:!doctype|!--|\?xml|/?(?:html|head|body|title|center|h\d|p|div|br|hr|a|script|style)\b).*", re.IGNORECASE)
_patterns: Final = (
    re.compile(r"[a-z][a-z0-9+.-]{1,20}://\S+", re.IGNORECASE),
    re.compile(r"\b(bearer|basic|authorization|api[-_ ]?key|x-api-key)\b\s*[:=]?\s+\S*\d\S*", re.IGNORECASE),
    re.compile(r"\b(sk|pk|rk|xai|gsk|hf|key|agw|ghp|AIza|eyJ)[-_A-Za-z0-9]*[-_A-Z0-9][-_A-Za-z0-9.*]{7,}"),
    re.compile(r"[\w.+-]+@[\w-]+\.[\w.]+"),
    re.compile(r"\b(org|proj|acct|cus|wrkspc)[-_](?!\d{1,3}\b)[A-Za-z0-9]{6,}\b"),
    re.compile(r"\b(account|project|organi[sz]ation|workspace|team|user)[-_](?=[A-Za-z0-9]*\d)[A-Za-z0-9]{6,}\b", re.IGNORECASE),
    re.compile(r"(?<=\b(?:organisation|organization) )[`'\"][^`'\"]{1,80}[`'\"]", re.IGNORECASE),
    re.compile(r"(?<=\b(?:account|project) )[`'\"][^`'\"]{1,80}[`'\"]", re.IGNORECASE),
    re.compile(r"\b\d{1,3}(\.\d{1,3}){3}(:\d+)?\b"),
    re.compile(
        r"\b([a-z0-9-]{1,63}\.){1,9}[a-z]{2,}:\d+\b|\b([a-z0-9-]{1,63}\.){1,9}(com|net|org|io|ai|dev|cloud|local|internal|lan|svc|example)\b",
        re.IGNORECASE,
    ),
    re.compile(r"\blocalhost(:\d+)?\b", re.IGNORECASE),
    re.compile(r"\bray id\b:?\s*\w*", re.IGNORECASE),
    re.compile(r"(?<![\w.])/(?:[\w.-]+/)+[\w.-]+"),
    re.compile(r"\b(?=[A-Za-z0-9_-]*\d)(?=[A-Za-z0-9_-]*[A-Za-z])[A-Za-z0-9_]{24,}\b"),
)
_letters: Final = re.compile(r"[A-Za-z0-9+/]{8,}")
_words: Final = re.compile(r"[A-Za-z0-9_\-.+/=%]+")


def is_markup(text: str) -> bool:
    """Whether ``text`` is a page instead of words."""
    return _markup.match(text) is not None


def redact(text: str, secrets: tuple[str, ...]) -> str:
    """Return ``text`` fit to be shown to a client; empty when it is markup.

    ``secrets`` are hidden whole and in pieces, URL-encoded and in base64 (also together with a user name) as well.
    """
    if not text or is_markup(text):
        return ""
    text = _tag.sub("", " ".join(clean_text(text[: 4 * MAX_LENGTH]).split())).rstrip()
    secrets = tuple(secret for secret in secrets if len(secret) >= _MIN_SECRET)
    for secret in secrets:
        text = text.replace(secret, _GAP)
    for pattern in _patterns:
        text = pattern.sub(_GAP, text)
    runs = frozenset(secret[start : start + _MIN_RUN] for secret in secrets for start in range(len(secret) - _MIN_RUN + 1))
    text = _words.sub(lambda match: _GAP if _betrays(match.group(), secrets, runs) else match.group(), text)
    return text if len(text) <= MAX_LENGTH else text[: MAX_LENGTH - 1] + "…"


def _betrays(word: str, secrets: tuple[str, ...], runs: frozenset[str]) -> bool:
    """Whether a word is a piece of a secret, or holds one, in any encoding."""
    if len(word) < _MIN_SECRET:
        return False
    plain = unquote(word)
    if any(plain in secret for secret in secrets) and len(plain) >= _MIN_SECRET:
        return True
    return any(_holds(form, secrets, runs) for form in (plain, *_decoded(plain)))


def _holds(text: str, secrets: tuple[str, ...], runs: frozenset[str]) -> bool:
    if any(secret in text for secret in secrets):
        return True
    return any(text[start : start + _MIN_RUN] in runs for start in range(len(text) - _MIN_RUN + 1))


def _decoded(word: str) -> list[str]:
    """What a word may stand for as base64 in either alphabet, also when its beginning or its end was cut off."""
    forms = []
    for letters in _letters.findall(word.replace("-", "+").replace("_", "/")):
        for cut in range(_GROUP):
            piece = letters[cut:]
            forms.append(base64.b64decode(piece + "A" * (-len(piece) % _GROUP)).decode("latin-1"))
    return forms
