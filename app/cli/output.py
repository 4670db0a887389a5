"""Tables and JSON on standard output."""

from collections.abc import Sequence

import msgspec

GAP = "  "


def table(header: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """Columns as wide as their widest cell; the header in capitals. Without rows only the header."""
    lines = [[name.upper() for name in header], *rows]
    widths = [max(len(line[column]) for line in lines) for column in range(len(header))]
    return "\n".join(GAP.join(cell.ljust(width) for cell, width in zip(line, widths, strict=True)).rstrip() for line in lines)


def as_json(value: object) -> str:
    """``value`` as JSON that people can read."""
    return msgspec.json.format(msgspec.json.encode(value), indent=2).decode()


def yes_no(value: bool) -> str:
    """A flag as a word."""
    return "yes" if value else "no"
