"""Names of MCP tools: ``<server>__<tool>``, made legal for every provider and told apart where that makes two the same."""

import hashlib
import re
from collections import Counter
from collections.abc import Iterable
from typing import Final

SEPARATOR: Final = "__"
MAX_NAME: Final = 64
_HASH_CHARACTERS: Final = 8
_ILLEGAL: Final = re.compile(r"[^a-zA-Z0-9_-]")


def exposed_names(server: str, names: Iterable[str]) -> dict[str, str]:
    """The name that models see for each of a server's tools.

    A name that is legal and short enough is kept. One that had to be cut, or became that of another tool, ends with a short hash of
    the server's name for it, so it is the same whatever order the tools are listed in.
    """
    cleaned = {name: f"{server}{SEPARATOR}{_ILLEGAL.sub('_', name)}" for name in dict.fromkeys(names)}
    counts = Counter(cleaned.values())
    exposed = {}
    for name, clean in cleaned.items():
        kept = clean == f"{server}{SEPARATOR}{name}"
        fits = len(clean) <= MAX_NAME and (kept or counts[clean] == 1)
        exposed[name] = clean if fits else _hashed(clean, name)
    return exposed


def server_of(exposed: str) -> str | None:
    """The server of a name that models see; ``None`` for a name of another kind."""
    server, separator, tool = exposed.partition(SEPARATOR)
    return server if server and separator and tool else None


def _hashed(clean: str, name: str) -> str:
    mark = hashlib.sha256(name.encode("utf-8", "surrogatepass")).hexdigest()[:_HASH_CHARACTERS]
    return f"{clean[: MAX_NAME - len(mark) - 1]}_{mark}"
