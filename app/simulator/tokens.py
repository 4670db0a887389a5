"""What all API modes share: how texts and calls are cut into tokens."""

import re

from app.simulator.script import Script

_TOKEN = re.compile(r"\s*\S{1,16}|\s+")
_CUT_FINISHES = frozenset({"length", "content_filter"})


def tokens_of(text: str) -> list[str]:
    """Cut a text into tokens."""
    return _TOKEN.findall(text)


def arguments_of(script: Script, index: int) -> str:
    """Return the arguments of a call; a truncated answer loses the second half of its last call's."""
    arguments = script.calls[index].arguments
    is_last = index == len(script.calls) - 1
    return arguments[: len(arguments) // 2] if is_last and script.finish in _CUT_FINISHES else arguments


def argument_tokens(script: Script, index: int) -> list[str]:
    """Cut the arguments of a call into the pieces that the script asks for."""
    arguments = arguments_of(script, index)
    size = max(1, -(-len(arguments) // script.argument_pieces))
    return [arguments[at : at + size] for at in range(0, len(arguments), size)]
