"""The operator's API for the tools of tenants: webhooks. As :mod:`app.api.routes.admin`; secrets and header values are never read back."""

from collections.abc import Callable
from typing import Any, TypeAlias

import msgspec
from fastapi import APIRouter, Depends, Request, Response

from app.api.admin_schemas import ToolsBody, answer, request_body
from app.api.authentication import admin
from app.api.services import services_of
from app.api.tenant_specs import parse_json
from app.domain.errors import InvalidRequestError, NotFoundError
from app.domain.tenant_tools import WebhookToolSpec
from app.domain.tenants import TenantInfo

Tools: TypeAlias = tuple[WebhookToolSpec, ...]

_REFUSALS: dict[int | str, dict[str, Any]] = {
    401: {"description": "The admin key is missing or wrong."},
    403: {"description": "No admin key is configured."},
    404: {"description": "There is no such tenant or tool."},
}
_INVALID: dict[int | str, dict[str, Any]] = {422: {"description": "The body cannot work; `pointer` says where."}}

router = APIRouter(prefix="/admin/tenants/{name}/tools", tags=["admin"], dependencies=[Depends(admin)], responses=_REFUSALS)


@router.get("", responses=answer(200, ToolsBody))
async def get_tools(request: Request, name: str) -> Response:
    """The tools of a tenant, as they can be put again."""
    return _json(ToolsBody(tools=(await _info(request, name)).tools))


@router.put("", responses={**answer(200, ToolsBody), **_INVALID}, openapi_extra=request_body(ToolsBody))
async def put_tools(request: Request, name: str) -> Response:
    """Replace the tools of a tenant. One without `secret`, or with a header of value `***`, keeps what it has of these."""
    body = parse_json(await request.body(), ToolsBody)
    return _json(ToolsBody(tools=await _edited(request, name, lambda _: body.tools)))


@router.get("/{tool}", responses=answer(200, WebhookToolSpec))
async def get_tool(request: Request, name: str, tool: str) -> Response:
    """One tool."""
    return _json(_named(tool, (await _info(request, name)).tools))


@router.put("/{tool}", responses={**answer(200, WebhookToolSpec), **_INVALID}, openapi_extra=request_body(WebhookToolSpec))
async def put_tool(request: Request, name: str, tool: str) -> Response:
    """Add a tool, or make it match the body; the tenant's other tools stay as they are."""
    spec = parse_json(await request.body(), WebhookToolSpec)
    if spec.name != tool:
        raise InvalidRequestError("The name differs from that of the path.", pointer="/name")

    def edit(present: Tools) -> Tools:
        return (spec, *(one for one in present if one.name != tool))

    try:
        return _json(_named(tool, await _edited(request, name, edit)))
    except InvalidRequestError as error:
        raise InvalidRequestError(error.detail, pointer=error.pointer.removeprefix("/tools/0")) from None


@router.delete("/{tool}", status_code=204)
async def delete_tool(request: Request, name: str, tool: str) -> Response:
    """Remove a tool. Sessions that have it are told so when they call it."""

    def edit(present: Tools) -> Tools:
        _named(tool, present)
        return tuple(one for one in present if one.name != tool)

    await _edited(request, name, edit)
    return Response(status_code=204)


async def _info(request: Request, name: str) -> TenantInfo:
    info = await services_of(request).tenants.info(name)
    if info is None:
        raise NotFoundError
    return info


async def _edited(request: Request, name: str, edit: Callable[[Tools], Tools]) -> Tools:
    info = await services_of(request).tenants.change_tools(name, edit)
    if info is None:
        raise NotFoundError
    return info.tools


def _named(name: str, tools: Tools) -> WebhookToolSpec:
    tool = next((one for one in tools if one.name == name), None)
    if tool is None:
        raise NotFoundError
    return tool


def _json(value: msgspec.Struct) -> Response:
    return Response(msgspec.json.encode(value), media_type="application/json", headers={"Cache-Control": "no-store"})
