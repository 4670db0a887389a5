"""Tables and JSON on standard output."""

from collections.abc import Sequence

import msgspec

from app.domain.tenants import CredentialState

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


def credential_word(state: CredentialState) -> str:
    """Where a credential stands, as this command sees it: the gateway has an environment of its own."""
    match state:
        case CredentialState.MISSING:
            return "not set here"
        case CredentialState.UNREADABLE:
            return "unreadable here"
        case _:
            return state.value
