"""What the commands about tenants share: the repository, input files, and names that lead nowhere."""

import asyncio
import sys
import tomllib
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any, TypeVar

import msgspec

from app.api.tenant_specs import parse_json
from app.cli.databases import open_database, open_tenants, read_settings, start_logging
from app.cli.errors import MISUSED, CommandError
from app.domain.errors import InvalidRequestError
from app.domain.tenants import TenantChange, TenantInfo
from app.store.tenants import TenantRepository

Answer = TypeVar("Answer")
Shape = TypeVar("Shape", bound=msgspec.Struct)

FILE_HELP = "TOML (.toml) or JSON file, - for JSON on standard input"


def with_tenants(work: Callable[[TenantRepository], Awaitable[Answer]]) -> Answer:
    """Do ``work`` on the tenants of the configured database. Raises the errors of :mod:`app.cli.errors`."""
    settings = read_settings()
    start_logging(settings, "WARNING")

    async def run(url: str) -> Answer:
        async with open_tenants(settings, url) as tenants:
            return await work(tenants)

    with open_database(settings, create=False) as url:
        return asyncio.run(run(url))


async def known_tenant(tenants: TenantRepository, name: str) -> TenantInfo:
    """The tenant. Raises CommandError when there is none of this name."""
    info = await tenants.info(name)
    if info is None:
        raise CommandError(f"There is no tenant named {name!r}.")
    return info


async def changed_tenant(tenants: TenantRepository, name: str, change: TenantChange) -> TenantInfo:
    """The tenant after ``change``. Raises CommandError when there is none of this name."""
    info = await tenants.change(name, change)
    if info is None:
        raise CommandError(f"There is no tenant named {name!r}.")
    return info


def read_text(source: str, argument: str) -> str:
    """The text of the file that ``argument`` names, ``-`` for standard input. Raises CommandError."""
    try:
        return sys.stdin.read() if source == "-" else Path(source).read_text("utf-8")
    except (OSError, UnicodeError) as error:
        raise CommandError(f"{argument} cannot be read: {error}", code=MISUSED) from None


def read_document(source: str) -> dict[str, Any]:
    """The object in the TOML or JSON file of ``--file``. Raises CommandError."""
    text = read_text(source, "--file")
    try:
        document = tomllib.loads(text) if source.endswith(".toml") else msgspec.json.decode(text)
    except (tomllib.TOMLDecodeError, msgspec.DecodeError, RecursionError) as error:
        raise CommandError(f"{source} cannot be read: {error}", code=MISUSED) from None
    if not isinstance(document, dict):
        raise CommandError(f"{source} does not hold an object.", code=MISUSED)
    return document


def read_shape(document: dict[str, Any], shape: type[Shape]) -> Shape:
    """``document`` as ``shape``, by the rules of the admin API. Raises InvalidRequestError."""
    try:
        body = msgspec.json.encode(document)
    except (TypeError, UnicodeError):
        raise InvalidRequestError("The file holds a value that no setting takes.") from None
    return parse_json(body, shape)
