"""Pages of the operator's lists: where each begins, and where the next one does."""

import json
import re
from collections.abc import Sequence
from typing import TypeVar

import msgspec

from app.api.admin_schemas import ProviderView, provider_views
from app.api.paging import cursor_of, position
from app.api.route_health import HealthDesk
from app.api.usage_schemas import UsageView
from app.domain.errors import InvalidRequestError
from app.domain.sessions import Page
from app.domain.tenants import KeyInfo, TenantInfo
from app.ports import TenantStore

Entry = TypeVar("Entry")

_TENANT = re.compile(r"[a-z0-9_-]{1,63}")
_KEY = re.compile(r"key_[0-9a-z]{1,60}")
_PROVIDER = re.compile(r"[a-z0-9_-]{1,63}/[A-Za-z0-9._-]{1,63}")
_LINE = re.compile(r"\[.{1,4000}\]")
_LOOKED_AT = 200
"""Tenants read at once in search of providers."""


async def tenant_page(tenants: TenantStore, limit: int, cursor: str | None) -> Page[TenantInfo]:
    """Tenants by name. Raises InvalidRequestError for a cursor of something else."""
    page = await tenants.page(limit, position(cursor, _TENANT))
    return Page(data=page.data, next_cursor=cursor_of(page.next_cursor))


def key_page(info: TenantInfo, limit: int, cursor: str | None) -> Page[KeyInfo]:
    """A tenant's keys, oldest first. Raises InvalidRequestError for a cursor of something else."""
    after = position(cursor, _KEY) or ""
    return _cut([(key.id, key) for key in info.keys if key.id > after], limit)


async def provider_page(
    tenants: TenantStore, desk: HealthDesk, only: TenantInfo | None, *, limit: int, cursor: str | None
) -> Page[ProviderView]:
    """Providers with the health of their routes, by tenant and name; those of one tenant with ``only``.

    Reads the health of no more tenants than are on the page. Raises InvalidRequestError for a cursor of something else.
    """
    tenant, _, provider = (position(cursor, _PROVIDER) or "").partition("/")
    infos = await _tenants_from(tenants, tenant, limit) if only is None else [only]
    named = [
        (f"{info.name}/{name}", info)
        for info in infos
        for name in sorted(provider.name for provider in info.providers)
        if info.name != tenant or name > provider
    ]
    page = _cut([(place, (place, info)) for place, info in named], limit)
    shown = list({info.id: info for _, info in page.data}.values())
    health = await desk.read(shown)
    views = {f"{view.tenant}/{view.name}": view for info in shown for view in provider_views(info, health)}
    return Page(data=tuple(views[place] for place, _ in page.data), next_cursor=page.next_cursor)


def usage_page(lines: Sequence[UsageView], limit: int, cursor: str | None) -> Page[UsageView]:
    """Lines by tenant, day and route. Raises InvalidRequestError for a cursor of something else."""
    after = _line_place(position(cursor, _LINE))
    placed = sorted((_place(line), index) for index, line in enumerate(lines))
    return _cut([(json.dumps(place), lines[index]) for place, index in placed if place > after], limit)


async def _tenants_from(tenants: TenantStore, name: str, providers: int) -> list[TenantInfo]:
    """Tenants from ``name`` on, as many as it takes to find more ``providers`` behind the first one."""
    first = await tenants.info(name) if name else None
    rest: list[TenantInfo] = []
    after: str | None = name
    while after is not None and sum(len(info.providers) for info in rest) <= providers:
        page = await tenants.page(_LOOKED_AT, after or None)
        rest += page.data
        after = page.next_cursor
    return rest if first is None else [first, *rest]


def _place(line: UsageView) -> list[str]:
    route = line.route
    return [line.tenant, line.day, *(() if route is None else (route.provider, route.model, route.api_mode.value))]


def _line_place(text: str | None) -> list[str]:
    try:
        return [] if text is None else msgspec.json.decode(text, type=list[str])
    except msgspec.DecodeError:
        raise InvalidRequestError("This is not a cursor of this listing.", pointer="/cursor") from None


def _cut(placed: Sequence[tuple[str, Entry]], limit: int) -> Page[Entry]:
    """The first entries of what follows, each with its place."""
    next_position = placed[limit - 1][0] if len(placed) > limit else None
    return Page(data=tuple(entry for _, entry in placed[:limit]), next_cursor=cursor_of(next_position))
