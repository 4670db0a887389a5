"""Keeps credentials, inner addresses and file paths out of error texts.

Exceptions of HTTP clients and database drivers carry URLs with keys, header dumps and connection strings. What is shown to a model is
stored and may reach an end user, so it loses all of them; the log keeps paths and host names. Rather too much than too little.
"""

import re
from re import Pattern

GONE = "[redacted]"

_WORDS = (
    "authorization",
    "api[-_]?key",
    "access[-_]?key",
    "private[-_]?key",
    "token",
    "secret",
    "passw(?:or)?d",
    "passphrase",
    "pwd",
    "credential",
    "signature",
    "cookie",
)
# Repetitions are bounded: a hostile text of thousands of characters must not cost the square of its length.
_SENSITIVE = rf"[\w-]{{0,40}}(?:{'|'.join(_WORDS)})[\w-]{{0,40}}"
_SCHEME = r"\b[A-Za-z][A-Za-z0-9+.-]{0,20}://"
_QUOTED = r"""(?:b?"[^"]*"?|b?'[^']*'?)"""

_RULES: tuple[tuple[Pattern[str], str], ...] = (
    (re.compile(r"-----BEGIN [A-Z ]*PRIVATE KEY-----.*?(?:-----END [A-Z ]*PRIVATE KEY-----|\Z)", re.DOTALL), GONE),
    # user:password@ of a URL; greedy, for a password may hold an @ or a slash
    (re.compile(rf"({_SCHEME})[^\s\"'<>]*@"), rf"\1{GONE}@"),
    (re.compile(rf"({_SCHEME}[^\s\"'<>?#]*[?#])[^\s\"'<>]+"), rf"\1{GONE}"),
    # a whole header line, then name: value and name=value, then the pairs of a dump: ('authorization', 'Bearer …')
    (re.compile(r"(?im)\b((?:proxy-)?authorization|(?:set-)?cookie)(\s*[:=]\s*)(?![\s\"'\[({]|b[\"'])[^\r\n]+"), rf"\1\2{GONE}"),
    (re.compile(rf"(?i)\b({_SENSITIVE})([\"']?\s*(?:[:=]|=>)\s*(?!\[redacted)[\[({{]*)(?:{_QUOTED}|[^\s,;&\"'}}\])]+)"), rf"\1\2{GONE}"),
    (re.compile(rf"(?i)([\"']{_SENSITIVE}[\"']\s*,\s*){_QUOTED}"), rf"\1{GONE}"),
    (re.compile(r"\b((?i:bearer))\s+(?!\[redacted\])[^\s\"',;]+"), rf"\1 {GONE}"),
    (re.compile(r"\b((?i:basic))\s+(?=\S*[A-Z0-9=])[A-Za-z0-9+/_-]{8,}=*"), rf"\1 {GONE}"),
    # keys by their makers' prefixes, JSON web tokens, and long words that mix capitals, small letters and digits
    (re.compile(r"\b(?:sk|pk|rk|agw|ghp|gho|ghs|ghu|github_pat|xox[a-z]|glpat|gsk|xai)[-_][\w.-]{6,}"), GONE),
    (re.compile(r"\b(?:AKIA|ASIA)[0-9A-Z]{12,}|\bAIza[\w-]{20,}|\beyJ[\w-]{8,}(?:\.[\w-]*)*"), GONE),
    (re.compile(r"\b(?=[\w-]{0,80}[A-Z])(?=[\w-]{0,80}[a-z])(?=[\w-]{0,80}\d)[\w-]{24,}"), GONE),
    # inner addresses
    (re.compile(r"\b(?:10(?:\.\d{1,3}){3}|192\.168(?:\.\d{1,3}){2}|172\.(?:1[6-9]|2\d|3[01])(?:\.\d{1,3}){2})\b"), "[address]"),
    (re.compile(r"\b[\w-]{1,63}(?:\.[\w-]{1,63}){0,6}\.(?:internal|local|localdomain|lan|svc|intranet|corp)\b"), "[address]"),
    # absolute paths of two parts or more, unless they are the path of a URL
    (re.compile(r"(?<![\w:/.\]])/(?:[^\s/\"'<>:,;()]+/)+[^\s/\"'<>:,;()]*"), "[path]"),
    (re.compile(r"(?<!\w)[A-Za-z]:\\[^\s\"'<>]+"), "[path]"),
)


def fit_to_show(text: str) -> str:
    """``text`` without credentials, inner addresses and absolute paths."""
    for pattern, replacement in _RULES:
        text = pattern.sub(replacement, text)
    return text
