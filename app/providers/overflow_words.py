"""How providers say that a request does not fit, and how they name the size that would. Data and pure reading."""

import re
from typing import Final

_MAX_WINDOW: Final = 100_000_000
_N: Final = r"(\d[\d,_]{0,14})"

CONTEXT_WORDS: Final = re.compile(
    r"prompt (is )?too long"
    r"|exceeds? (the |its |your )?(model'?s? )?(available |maximum |configured )?context"
    r"|(maximum|max) (model )?(context|prompt) (length|size|window)"
    r"|context[ _]?(length|window|size)[ _]?(is )?exceed"
    r"|exceed[^.]{0,60}context (window|length|limit|size)"
    r"|longer than the model'?s context"
    r"|too large for model with \d+ maximum context"
    r"|(greater|larger|longer) than the (model'?s )?context (length|window|size)"
    r"|context (the )?overflow"
    r"|input (token count|length|tokens) [^.]{0,60}exceed"
    r"|prompt token count of \d+ exceeds"
    r"|prompt exceeds (the )?max"
    r"|exceeded model token limit"
    r"|exceeds max_seq_len"
    r"|more than max tokens allowed"
    r"|input is too long"
    r"|total length of all messages is too long"
    r"|reduce the length of (the |your )?(messages|prompt|input)"
    r"|range of input length should be"
    r"|request exceeds the maximum size",
    re.IGNORECASE,
)
"""The request does not fit the model's window. The many dialects of it are listed in the tests."""

OUTPUT_CAP_WORDS: Final = re.compile(
    rf"max_(?:completion_|output_)?tokens['`\"]?(?: or ['`\"]max_completion_tokens['`\"])?"
    rf"(?::? {_N} > \d| is too (?:large|high)(?:: {_N})?"
    r"| (?:must|should|cannot|can't|may not) (?:be|not|exceed)| exceeds? (?:the )?(?:max|limit))"
    r"|range of max_(?:completion_|output_)?tokens should be"
    r"|supports at most \d+ completion tokens"
    r"|maximum (?:allowed )?number of output tokens",
    re.IGNORECASE,
)
"""The answer that was asked for is longer than the model writes. That no shorter conversation would help makes it no overflow."""

MINUTE_WORDS: Final = re.compile(r"request too large for .{0,240}?\b(?:tokens per min|TPM)\b", re.IGNORECASE | re.DOTALL)
"""The request alone is larger than the tokens of a minute: no wait helps, a shorter conversation does."""

LONG_CONTEXT_WORDS: Final = re.compile(r"extra usage\b.{0,80}\blong[- ]context|long[- ]context\b.{0,80}\bextra usage", re.IGNORECASE)
"""Anthropic's word for a request beyond the window that the account has paid for, under the status of a rate limit."""
LONG_CONTEXT_WINDOW: Final = 200_000
"""Tokens: the window of those accounts."""

_windows: Final = tuple(
    re.compile(pattern, re.IGNORECASE)
    for pattern in (
        rf"\d tokens > {_N} maximum",
        rf"exceed context limit: {_N} \+ {_N} > (?P<m>{_N})",
        rf"exceeds? the (?:configured )?limit of {_N}",
        rf"(?:context|prompt|maximum input|allowed input) length (?:is |of |\()(?:only )?{_N}",
        rf"with {_N} maximum context",
        rf"context (?:length|window|size) \({_N} tokens\)",
        rf"maximum number of (?:input )?tokens allowed \({_N}\)",
        rf"model token limit: {_N}",
        rf"input length should be \[\d+, ?{_N}\]",
        rf"max_seq_len {_N}",
        rf"(?:context window|context size) (?:is |of ){_N}",
        rf"\bn_ctx: ?{_N}",
    )
)
_minute: Final = re.compile(rf"\blimit:? {_N}", re.IGNORECASE)


def window_in(text: str) -> int | None:
    """The limit that an overflow text names, in tokens; never the size of what was sent."""
    for pattern in _windows:
        match = pattern.search(text)
        if match is not None:
            return _number(match["m"] if "m" in pattern.groupindex else match[1])
    return None


def minute_in(text: str) -> int | None:
    """The tokens per minute that a text of :data:`MINUTE_WORDS` names."""
    match = _minute.search(text)
    return _number(match[1]) if match is not None else None


def asks_for_too_much(text: str) -> bool:
    """Whether it is the answer's length that is refused. One that fits an empty window is refused for the conversation's length."""
    match = OUTPUT_CAP_WORDS.search(text)
    if match is None:
        return False
    asked = _number(match[1] or match[2] or "")
    window = window_in(text)
    return asked is None or window is None or asked >= window


def _number(digits: str) -> int | None:
    plain = digits.replace(",", "").replace("_", "")
    return int(plain) if plain and 0 < int(plain) <= _MAX_WINDOW else None
