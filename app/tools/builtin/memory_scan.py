"""What may not be kept in memory: text that would work on later conversations as an order or a leak. Pure.

Memory stands in the system prompt, so whoever gets a sentence into it speaks with its weight. The scan is a sieve for the usual forms and
no proof; it looks at the text as a reader sees it (compatibility forms, case, spaces and invisible characters set aside).
"""

import re
import unicodedata
from typing import Final

_HIDDEN = re.compile("[\u00ad\u180e\u200b\u200e\u200f\u202a-\u202e\u2060-\u206f\ufeff\ufff9-\ufffb\U000e0000-\U000e0fff]")
"""Invisible characters and those that turn the direction of text; the joiners of emoji and of Persian are not among them."""
_CONTROL = re.compile(r"[\x00-\x08\x0b\x0c\x0e-\x1f\x7f-\x9f]")
_SPACES = re.compile(r"\s+")

_RULES = r"(?:instruction|rule|guideline|direction|prompt|order|polic|restriction|safety|constraint)"
_WHOSE = r"(?:all|any|your|the|these|those|previous|prior|above|earlier|system|other|safety)"
_SECRETS = r"(?:api[ _-]?keys?|passwords?|passphrases?|credentials?|secrets?|(?:access|auth|bearer|session) ?tokens?|private keys?)"
_SENDS = r"(?:send|post|upload|forward|e-?mail|leak|exfiltrat\w*|transmit|report|submit|append|include|reveal|print|show)"
_AWAY = (
    r"(?:https?:|\S@\S|\bto (?:me|us|him|her|them|this|the following|an? (?:external|remote|server|url|webhook|address))\b"
    r"|\bin (?:every|each|all|your) (?:answer|repl|response|message))"
)
_FILES = r"(?:\.env\b|id_rsa|id_ed25519|\.netrc|\.pgpass|\.npmrc|/etc/shadow|\.aws/)"
_PROBLEMS: Final = {
    "it asks to ignore rules": (
        rf"\b(?:ignore|disregard|forget|override|bypass|disobey|neglect)\b.{{0,40}}\b{_WHOSE}\b.{{0,30}}{_RULES}",
        r"\b(?:act|behave|respond|answer) as (?:if|though) you (?:have|had) no\b",
    ),
    "it gives the model another role": (r"\byou are (?:now|no longer) (?:an? |the |bound |in )",),
    "it poses as a system prompt": (
        rf"\b(?:new|updated|revised) (?:system )?(?:prompt|instructions?)\s*:|\bsystem prompt\b.{{0,20}}{_RULES}",
        r"\[(?:end of )?historical summary\]|<\|?(?:im_start|im_end|system|assistant)\|?>|\[/?inst\]",
    ),
    "it asks to keep something from the user": (r"\b(?:do not|don't|never) (?:tell|inform|let) the user\b",),
    "it asks to give secrets away": (
        rf"\b{_SENDS}\b.{{0,60}}\b{_SECRETS}.{{0,60}}{_AWAY}",
        rf"\b(?:curl|wget|nc|ncat|invoke-webrequest)\b.{{0,200}}(?:\$\{{?\w*(?:key|token|secret|pass)|{_FILES})",
        rf"\b(?:cat|less|head|tail|base64)\b.{{0,40}}{_FILES}",
    ),
}
_SIEVE: Final = tuple((re.compile(pattern), problem) for problem, patterns in _PROBLEMS.items() for pattern in patterns)


def problem_with(entry: str) -> str | None:
    """Why ``entry`` may not be kept; ``None`` when nothing speaks against it."""
    if _HIDDEN.search(entry) or _CONTROL.search(entry):
        return "it has invisible or control characters"
    read = _SPACES.sub(" ", unicodedata.normalize("NFKC", entry).casefold()).replace("\u2019", "'")
    return next((problem for pattern, problem in _SIEVE if pattern.search(read)), None)
