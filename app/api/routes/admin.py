"""The operator's API: tenants, their keys, providers and chains. Behind the admin key; closed when none is configured.

Bodies and answers are the structure of the bootstrap file. Secrets are never read back: a key is shown when it is made, a provider's
credential and the values of its headers never. A change is in force on every replica within seconds.
"""

from typing import Annotated, Any

import msgspec
from fastapi import APIRouter, Depends, Query, Request, Response

from app.api.admin_pages import key_page, provider_page, tenant_page, usage_page
from app.api.admin_schemas import (
    ChainsBody,
    DisabledKey,
    KeyList,
    KeyView,
    McpServersBody,
    NewKey,
    ProviderList,
    ProvidersBody,
    ProviderView,
    TenantList,
    TenantView,
    ToolPoolBody,
    ToolPoolView,
    answer,
    key_view,
    provider_views,
    request_body,
    tenant_view,
)
from app.api.authentication import admin
from app.api.paging import DEFAULT_LIMIT, After, Cursor, Limit
from app.api.services import services_of
from app.api.tenant_specs import parse_json
from app.api.usage_schemas import UsageList, period, usage_views
from app.domain.errors import InvalidRequestError, NotFoundError
from app.domain.ids import KeyId
from app.domain.tenants import TenantChange, TenantInfo, TenantSpec
from app.ports import ToolCapacity

_REFUSALS: dict[int | str, dict[str, Any]] = {
    401: {"description": "The admin key is missing or wrong."},
    403: {"description": "No admin key is configured."},
}
_UNKNOWN: dict[int | str, dict[str, Any]] = {404: {"description": "There is no such tenant or key."}}
_NO_ROUTE: dict[int | str, dict[str, Any]] = {404: {"description": "There is no such tenant, or it has no such route."}}
_BAD_CURSOR: dict[int | str, dict[str, Any]] = {422: {"description": "`cursor` or `limit` is invalid."}}
_INVALID: dict[int | str, dict[str, Any]] = {422: {"description": "The body is invalid; `errors` points to the place."}}
_CONFLICT: dict[int | str, dict[str, Any]] = {409: {"description": "The state does not allow it; `code` says why."}}

TenantName = Annotated[str | None, Query(description="Only of this tenant.")]
LineCursor = Annotated[str | None, Query(max_length=4_000, description="`next_cursor` of the page before.")]
ModelName = Annotated[str | None, Query(max_length=256, description="Only routes to this model.")]
FirstDay = Annotated[str | None, Query(alias="from", description="First day (UTC), YYYY-MM-DD; without it the last 30 days.")]
LastDay = Annotated[str | None, Query(alias="to", description="Last day (UTC), included; without it today.")]

router = APIRouter(prefix="/admin", tags=["admin"], dependencies=[Depends(admin)], responses=_REFUSALS)


@router.get("/tenants", responses={**answer(200, TenantList), **_BAD_CURSOR})
async def list_tenants(request: Request, *, limit: Limit = DEFAULT_LIMIT, cursor: Cursor = None, after: After = None) -> Response:
    """The tenants, by name."""
    page = await tenant_page(services_of(request).tenants, limit, cursor or after)
    return _json(TenantList(data=tuple(tenant_view(info) for info in page.data), has_more=page.has_more, next_cursor=page.next_cursor))


@router.post(
    "/tenants", status_code=201, responses={**answer(201, TenantView), **_INVALID, **_CONFLICT}, openapi_extra=request_body(TenantSpec)
)
async def create_tenant(request: Request) -> Response:
    """Create a tenant. Without `api_keys` a key is generated and shown in `api_key`, this once."""
    spec = parse_json(await request.body(), TenantSpec)
    info, api_key = await services_of(request).tenants.apply(spec, generate_key=True, create_only=True)
    return _json(tenant_view(info, api_key), 201, {"Location": f"/admin/tenants/{info.name}"})


@router.get("/tenants/{name}", responses={**answer(200, TenantView), **_UNKNOWN})
async def get_tenant(request: Request, name: str) -> Response:
    """One tenant."""
    return _json(tenant_view(await _info(request, name)))


@router.put("/tenants/{name}", responses={**answer(200, TenantView), **_INVALID, **_CONFLICT}, openapi_extra=request_body(TenantSpec))
async def put_tenant(request: Request, name: str) -> Response:
    """Create the tenant or make it match the body, as the bootstrap file does.

    What the body leaves out goes back to its default; keys are only added. A provider without `api_key` keeps the credential it has.
    """
    spec = parse_json(await request.body(), TenantSpec)
    if spec.name != name:
        raise InvalidRequestError("The name differs from that of the path.", pointer="/name")
    info, api_key = await services_of(request).tenants.apply(spec, generate_key=True)
    return _json(tenant_view(info, api_key))


@router.patch("/tenants/{name}", responses={**answer(200, TenantView), **_UNKNOWN, **_INVALID}, openapi_extra=request_body(TenantChange))
async def patch_tenant(request: Request, name: str) -> Response:
    """Replace the providers, the chains, the tools, the MCP servers or the settings, each as a whole."""
    return _json(tenant_view(await _change(request, name, parse_json(await request.body(), TenantChange))))


@router.post("/tenants/{name}/disable", responses={**answer(200, TenantView), **_UNKNOWN})
async def disable_tenant(request: Request, name: str) -> Response:
    """Turn all keys of a tenant away. What it has stays."""
    return await _set_disabled(request, name, disabled=True)


@router.post("/tenants/{name}/enable", responses={**answer(200, TenantView), **_UNKNOWN})
async def enable_tenant(request: Request, name: str) -> Response:
    """Undo disabling."""
    return await _set_disabled(request, name, disabled=False)


@router.get("/tenants/{name}/keys", responses={**answer(200, KeyList), **_UNKNOWN, **_BAD_CURSOR})
async def list_keys(request: Request, name: str, *, limit: Limit = DEFAULT_LIMIT, cursor: Cursor = None, after: After = None) -> Response:
    """The keys of a tenant, oldest first, without the keys themselves."""
    page = key_page(await _info(request, name), limit, cursor or after)
    return _json(KeyList(data=tuple(key_view(key) for key in page.data), has_more=page.has_more, next_cursor=page.next_cursor))


@router.post(
    "/tenants/{name}/keys",
    status_code=201,
    responses={**answer(201, KeyView), **_UNKNOWN, **_INVALID},
    openapi_extra=request_body(NewKey, required=False),
)
async def create_key(request: Request, name: str) -> Response:
    """Make a key; it is shown in `api_key`, this once."""
    body = parse_json(await request.body() or b"{}", NewKey)
    made = await services_of(request).tenants.add_key(name, body.name)
    if made is None:
        raise NotFoundError
    return _json(key_view(*made), 201)


@router.post("/keys/{key_id}/rotate", status_code=201, responses={**answer(201, KeyView), **_UNKNOWN, **_CONFLICT})
async def rotate_key(request: Request, key_id: str) -> Response:
    """Make a key in place of another, which is disabled; the new one is shown in `api_key`, this once."""
    made = await services_of(request).tenants.rotate_key(KeyId(key_id))
    if made is None:
        raise NotFoundError
    return _json(key_view(*made), 201)


@router.delete("/keys/{key_id}", responses={**answer(200, DisabledKey), **_UNKNOWN})
async def disable_key(request: Request, key_id: str) -> Response:
    """Disable a key; idempotent. It stays listed."""
    if not await services_of(request).tenants.disable_key(KeyId(key_id)):
        raise NotFoundError
    return _json(DisabledKey(id=KeyId(key_id)))


@router.get("/tenants/{name}/providers", responses={**answer(200, ProvidersBody), **_UNKNOWN})
async def get_providers(request: Request, name: str) -> Response:
    """The providers of a tenant, as they can be put again."""
    return _json(ProvidersBody(providers=(await _info(request, name)).providers))


@router.put(
    "/tenants/{name}/providers",
    responses={**answer(200, ProvidersBody), **_UNKNOWN, **_INVALID},
    openapi_extra=request_body(ProvidersBody),
)
async def put_providers(request: Request, name: str) -> Response:
    """Replace the providers of a tenant. One without `api_key`, or with a header of value `***`, keeps what it has of these."""
    body = parse_json(await request.body(), ProvidersBody)
    return _json(ProvidersBody(providers=(await _change(request, name, TenantChange(providers=body.providers))).providers))


@router.get("/tenants/{name}/chains", responses={**answer(200, ChainsBody), **_UNKNOWN})
async def get_chains(request: Request, name: str) -> Response:
    """The chains of a tenant."""
    return _json(ChainsBody(chains=(await _info(request, name)).chains))


@router.put(
    "/tenants/{name}/chains",
    responses={**answer(200, ChainsBody), **_UNKNOWN, **_INVALID},
    openapi_extra=request_body(ChainsBody),
)
async def put_chains(request: Request, name: str) -> Response:
    """Replace the chains of a tenant."""
    body = parse_json(await request.body(), ChainsBody)
    return _json(ChainsBody(chains=(await _change(request, name, TenantChange(chains=body.chains))).chains))


@router.get("/tenants/{name}/mcp_servers", responses={**answer(200, McpServersBody), **_UNKNOWN})
async def get_mcp_servers(request: Request, name: str) -> Response:
    """The MCP servers of a tenant, as they can be put again."""
    return _json(McpServersBody(mcp_servers=(await _info(request, name)).mcp_servers))


@router.put(
    "/tenants/{name}/mcp_servers",
    responses={**answer(200, McpServersBody), **_UNKNOWN, **_INVALID},
    openapi_extra=request_body(McpServersBody),
)
async def put_mcp_servers(request: Request, name: str) -> Response:
    """Replace the MCP servers of a tenant. One without `credential`, or with a header of value `***`, keeps what it has of these.

    Nothing is called: a server that does not answer is noticed by the sessions that use it.
    """
    body = parse_json(await request.body(), McpServersBody)
    return _json(McpServersBody(mcp_servers=(await _change(request, name, TenantChange(mcp_servers=body.mcp_servers))).mcp_servers))


@router.get("/providers", responses={**answer(200, ProviderList), **_UNKNOWN, **_BAD_CURSOR})
async def list_providers(
    request: Request, tenant: TenantName = None, *, limit: Limit = DEFAULT_LIMIT, cursor: Cursor = None, after: After = None
) -> Response:
    """The providers of all tenants, or of one, by tenant and name, with their routes.

    Where credentials stand, how healthy each route is, what is used of its limits; those that a provider told of are shown as the replica
    that answers knows them. Routes of disabled tenants have no health.
    """
    services = services_of(request)
    only = None if tenant is None else await _info(request, tenant)
    page = await provider_page(services.tenants, services.route_health, only, limit=limit, cursor=cursor or after)
    return _json(ProviderList(data=page.data, has_more=page.has_more, next_cursor=page.next_cursor))


@router.post("/providers/{tenant}/{provider}/reset", responses={**answer(200, ProviderView), **_NO_ROUTE})
async def reset_provider(request: Request, tenant: str, provider: str, model: ModelName = None) -> Response:
    """End the cool-downs of a provider's routes, or of those to one model, and forget their failures; idempotent.

    Also those whose time the provider named. Every replica calls them again within about a second; what fails then cools down anew.
    """
    desk = services_of(request).route_health
    info = await _info(request, tenant)
    if not await desk.reset(info, provider, model):
        raise NotFoundError
    views = provider_views(info, await desk.read([info]))
    return _json(next(view for view in views if view.name == provider))


@router.get("/usage", responses={**answer(200, UsageList), **_UNKNOWN, **_INVALID})
async def read_usage(
    request: Request,
    tenant: TenantName = None,
    first: FirstDay = None,
    last: LastDay = None,
    *,
    limit: Limit = DEFAULT_LIMIT,
    cursor: LineCursor = None,
) -> Response:
    """Turns, tokens and money per tenant, day and route, from the turns that are stored.

    Those of deleted sessions are gone, and so are those of calls without a session after `GATEWAY_STATELESS_RETENTION_S`.
    """
    services = services_of(request)
    if tenant is not None:
        await _info(request, tenant)
    begin, end = period(first, last, services.clock.now().date())
    page = usage_page(usage_views(await services.usage.report(tenant, begin, end)), limit, cursor)
    return _json(UsageList(data=page.data, has_more=page.has_more, next_cursor=page.next_cursor))


@router.get("/tools/pool", responses=answer(200, ToolPoolView))
async def get_tool_pool(request: Request) -> Response:
    """How many tool calls the process that answers may run at once, and how many there are."""
    return _json(_pool_view(services_of(request).tool_capacity))


@router.put("/tools/pool", responses={**answer(200, ToolPoolView), **_INVALID}, openapi_extra=request_body(ToolPoolBody))
async def put_tool_pool(request: Request) -> Response:
    """Change that number, of the process that answers, until it ends. Calls that wait stay in line; more begin at once."""
    capacity = services_of(request).tool_capacity
    capacity.resize(parse_json(await request.body(), ToolPoolBody).size)
    return _json(_pool_view(capacity))


def _pool_view(capacity: ToolCapacity) -> ToolPoolView:
    return ToolPoolView(size=capacity.size, running=capacity.running, waiting=capacity.waiting)


async def _info(request: Request, name: str) -> TenantInfo:
    info = await services_of(request).tenants.info(name)
    if info is None:
        raise NotFoundError
    return info


async def _change(request: Request, name: str, change: TenantChange) -> TenantInfo:
    info = await services_of(request).tenants.change(name, change)
    if info is None:
        raise NotFoundError
    return info


async def _set_disabled(request: Request, name: str, *, disabled: bool) -> Response:
    if not await services_of(request).tenants.set_disabled(name, disabled):
        raise NotFoundError
    return _json(tenant_view(await _info(request, name)))


def _json(value: msgspec.Struct, status: int = 200, headers: dict[str, str] | None = None) -> Response:
    # Answers may hold a new key: no cache on the way may keep them.
    return Response(
        msgspec.json.encode(value),
        status_code=status,
        media_type="application/json",
        headers={**(headers or {}), "Cache-Control": "no-store"},
    )
