"""What a tenant's own tools must be like to be stored. As in :mod:`app.domain.tenant_rules`; schemas are judged where tools are made."""

import base64
import binascii
from collections.abc import Sequence
from typing import Final

from app.domain.spec_rules import check_address, check_count, check_env_name, check_headers, env_name, is_credential, require
from app.domain.tenant_tools import SIGNING_PREFIX, WebhookToolSpec
from app.domain.tools import TOOL_NAME

MAX_TOOLS: Final = 128
"""What some providers take at most, with all other tools."""
MAX_TIMEOUT_S: Final = 600.0
_MIN_SECRET: Final = 16
_MAX_SECRET: Final = 512
_MAX_DESCRIPTION: Final = 16_384
_OWN_HEADERS: Final = frozenset({"idempotency-key", "webhook-id", "webhook-signature", "webhook-timestamp"})


def check_tools(tools: Sequence[WebhookToolSpec], pointer: str) -> None:
    """Raise InvalidRequestError for the first thing in ``tools`` that cannot work; ``pointer`` is that to the list."""
    require(len(tools) <= MAX_TOOLS, f"There are more than {MAX_TOOLS} tools.", pointer)
    names: set[str] = set()
    for index, tool in enumerate(tools):
        place = f"{pointer}/{index}"
        detail = "A tool's name is 1 to 64 letters, digits, underscores and hyphens."
        require(TOOL_NAME.fullmatch(tool.name) is not None, detail, f"{place}/name")
        require(tool.name not in names, f"There are two tools named {tool.name!r}.", f"{place}/name")
        names.add(tool.name)
        _check_tool(tool, place)


def signing_key(secret: str) -> bytes | None:
    """The bytes that calls are signed with; ``None`` for a secret that cannot be used."""
    if not is_credential(secret) or not _MIN_SECRET <= len(secret) <= _MAX_SECRET:
        return None
    if not secret.startswith(SIGNING_PREFIX):
        return secret.encode("ascii")
    try:
        return base64.b64decode(secret.removeprefix(SIGNING_PREFIX), validate=True) or None
    except binascii.Error:
        return None


def _check_tool(tool: WebhookToolSpec, place: str) -> None:
    said = 0 < len(tool.description.strip()) <= len(tool.description) <= _MAX_DESCRIPTION
    require(said, f"A tool has a description of at most {_MAX_DESCRIPTION} characters.", f"{place}/description")
    check_address(tool.url, f"{place}/url")
    if tool.secret:
        name = env_name(tool.secret)
        if name is None:
            detail = f"A secret is {_MIN_SECRET} to {_MAX_SECRET} visible ASCII characters; behind {SIGNING_PREFIX} it is base64."
            require(signing_key(tool.secret) is not None, detail, f"{place}/secret")
        else:
            check_env_name(name, f"{place}/secret")
    check_headers(tool.headers, f"{place}/headers")
    for header in tool.headers:
        require(header.lower() not in _OWN_HEADERS, "This header is the gateway's own.", f"{place}/headers/{header.replace('~', '~0')}")
    require(0.0 < tool.timeout_s <= MAX_TIMEOUT_S, f"timeout_s is more than 0 and at most {MAX_TIMEOUT_S:g} seconds.", f"{place}/timeout_s")
    check_count(len(tool.secret_arguments), f"{place}/secret_arguments")
