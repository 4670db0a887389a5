"""What of a provider's own words may be shown: short, one line, without credentials, addresses, paths or markup."""

import re
from typing import Final

from app.domain.messages import clean_text

MAX_LENGTH: Final = 200
_GAP: Final = "[redacted]"
_MIN_SECRET: Final = 6
"""Shorter pieces of a credential are too common in ordinary text to be told from it."""

_patterns: Final = (
    re.compile(r"[a-z][a-z0-9+.-]{1,20}://\S+", re.IGNORECASE),
    re.compile(r"\b(bearer|basic|authorization|api[-_ ]?key|x-api-key)\b\s*[:=]?\s+\S*\d\S*", re.IGNORECASE),
    re.compile(r"\b(sk|pk|rk|xai|gsk|hf|key|agw|ghp|AIza|eyJ)[-_A-Za-z0-9]*[-_A-Z0-9][-_A-Za-z0-9.*]{7,}"),
    re.compile(r"[\w.+-]+@[\w-]+\.[\w.]+"),
    re.compile(r"\b\d{1,3}(\.\d{1,3}){3}(:\d+)?\b"),
    re.compile(
        r"\b([a-z0-9-]+\.)+[a-z]{2,}:\d+\b|\b([a-z0-9-]+\.)+(com|net|org|io|ai|dev|cloud|local|internal|lan|svc|example)\b", re.IGNORECASE
    ),
    re.compile(r"\blocalhost(:\d+)?\b", re.IGNORECASE),
    re.compile(r"(?<![\w.])/(?:[\w.-]+/)+[\w.-]+"),
    re.compile(r"\b(?=[A-Za-z0-9_-]*\d)(?=[A-Za-z0-9_-]*[A-Za-z])[A-Za-z0-9_]{24,}\b"),
)
_words: Final = re.compile(r"[A-Za-z0-9_\-.+/=]+")


def redact(text: str, secrets: tuple[str, ...]) -> str:
    """Return ``text`` fit to be shown to a client; empty when it is markup. ``secrets`` are hidden whole and in pieces."""
    if not text or text.lstrip().startswith("<"):
        return ""
    text = " ".join(clean_text(text[: 4 * MAX_LENGTH]).split())
    for secret in secrets:
        if len(secret) >= _MIN_SECRET:
            text = text.replace(secret, _GAP)
    for pattern in _patterns:
        text = pattern.sub(_GAP, text)
    text = _words.sub(lambda match: _GAP if _is_piece(match.group(), secrets) else match.group(), text)
    return text if len(text) <= MAX_LENGTH else text[: MAX_LENGTH - 1] + "…"


def _is_piece(word: str, secrets: tuple[str, ...]) -> bool:
    """Whether a word, or what stands before or behind a mask in it, is a piece of a secret."""
    return len(word) >= _MIN_SECRET and any(word in secret for secret in secrets)
