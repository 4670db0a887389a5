"""Names of tools as models write them: which tool a wrong one is meant for.

In this order: lower case, hyphens, spaces and dots as underscores, words in camel case taken apart, nothing behind a quote or an angle
bracket, up to two endings ``_tool``; then the most similar name, if it is similar enough and no other is about as similar.
"""

import re
from collections.abc import Collection
from difflib import SequenceMatcher
from typing import Final

import msgspec

from app.domain.messages import ToolCall

_SIMILAR: Final = 0.7
_CLEARLY: Final = 0.08
"""By so much the best must be above the next."""
_MAX_NAME: Final = 128
"""Characters of a name that are worth a look: comparing costs their square."""
_MAX_CANDIDATES: Final = 5
_SUFFIX: Final = "_tool"
_cut: Final = re.compile("[\"'<>`]")
_camel: Final = re.compile(r"(?<=[a-z0-9])(?=[A-Z])")
_separator: Final = re.compile(r"[\s.\-]+")


def matches(name: str, offered: Collection[str]) -> tuple[str, ...]:
    """The tools among ``offered`` that a name may be meant for, sorted: none, the one, or several that are about as similar."""
    if len(name) > _MAX_NAME and not _cut.search(name[:_MAX_NAME]):
        return ()
    plain = _plain(name)
    if not plain:
        return ()
    same = tuple(sorted(one for one in offered if _plain(one) == plain))
    return same or _similar(plain, offered)


def rightly_named(call: ToolCall, offered: Collection[str], *, known: Collection[str]) -> ToolCall:
    """A call by the name of the tool that it is meant for. ``known`` are tools that exist: who calls one of them means no other."""
    if call.name in offered or call.name in known:
        return call
    found = matches(call.name, offered)
    if len(found) != 1:
        return call
    return msgspec.structs.replace(call, name=found[0])


def _plain(name: str) -> str:
    name = _cut.split(name, maxsplit=1)[0].strip()
    name = _separator.sub("_", _camel.sub("_", name)).lower()
    return name.removesuffix(_SUFFIX).removesuffix(_SUFFIX)


def _similar(plain: str, offered: Collection[str]) -> tuple[str, ...]:
    matcher = SequenceMatcher(b=plain, autojunk=False)
    ratios: list[tuple[float, str]] = []
    for one in offered:
        matcher.set_seq1(_plain(one))
        if matcher.quick_ratio() >= _SIMILAR and (ratio := matcher.ratio()) >= _SIMILAR:
            ratios.append((ratio, one))
    best = max(ratios, default=(0.0, ""))[0]
    close = sorted(((ratio, one) for ratio, one in ratios if ratio > best - _CLEARLY), reverse=True)
    return tuple(sorted(one for _, one in close[:_MAX_CANDIDATES]))
