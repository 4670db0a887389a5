"""Every route of the API, sorted by who may call it. One that is not listed fails the tests until somebody has thought about it."""

from collections.abc import Iterable, Iterator

from fastapi import FastAPI
from starlette.routing import BaseRoute

PUBLIC = {
    ("GET", "/livez"),
    ("HEAD", "/livez"),
    ("GET", "/readyz"),
    ("HEAD", "/readyz"),
    ("GET", "/openapi.json"),
    ("HEAD", "/openapi.json"),
    ("GET", "/docs"),
    ("HEAD", "/docs"),
}
"""Open to everybody; they say nothing of any tenant."""

TENANT = {
    ("POST", "/sessions"),
    ("GET", "/sessions"),
    ("GET", "/sessions/{session_id}"),
    ("PATCH", "/sessions/{session_id}"),
    ("DELETE", "/sessions/{session_id}"),
    ("GET", "/sessions/{session_id}/messages"),
    ("GET", "/sessions/{session_id}/summaries"),
    ("GET", "/sessions/{session_id}/kanban"),
    ("POST", "/sessions/{session_id}/turns"),
    ("GET", "/sessions/{session_id}/turns"),
    ("GET", "/turns/{turn_id}"),
    ("POST", "/sessions/{session_id}/compact"),
    ("GET", "/turns/{turn_id}/events"),
    ("DELETE", "/turns/{turn_id}"),
    ("POST", "/turns/{turn_id}/cancel"),
    ("POST", "/turns/{turn_id}/tool_results"),
    ("GET", "/turns/{turn_id}/tool_results/{tool_call_id:path}"),
    ("POST", "/v1/chat/completions"),
    ("POST", "/v1/responses"),
    ("GET", "/v1/models"),
    ("GET", "/v1/models/{model:path}"),
}
"""For a tenant's key, about its own things alone."""

OPERATOR = {
    ("GET", "/metrics"),
    ("GET", "/admin/tenants"),
    ("POST", "/admin/tenants"),
    ("GET", "/admin/tenants/{name}"),
    ("PUT", "/admin/tenants/{name}"),
    ("PATCH", "/admin/tenants/{name}"),
    ("POST", "/admin/tenants/{name}/disable"),
    ("POST", "/admin/tenants/{name}/enable"),
    ("GET", "/admin/tenants/{name}/keys"),
    ("POST", "/admin/tenants/{name}/keys"),
    ("POST", "/admin/keys/{key_id}/rotate"),
    ("DELETE", "/admin/keys/{key_id}"),
    ("GET", "/admin/tenants/{name}/providers"),
    ("PUT", "/admin/tenants/{name}/providers"),
    ("GET", "/admin/tenants/{name}/chains"),
    ("PUT", "/admin/tenants/{name}/chains"),
    ("GET", "/admin/tenants/{name}/tools"),
    ("PUT", "/admin/tenants/{name}/tools"),
    ("GET", "/admin/tenants/{name}/tools/{tool}"),
    ("PUT", "/admin/tenants/{name}/tools/{tool}"),
    ("DELETE", "/admin/tenants/{name}/tools/{tool}"),
    ("GET", "/admin/tenants/{name}/mcp_servers"),
    ("PUT", "/admin/tenants/{name}/mcp_servers"),
    ("GET", "/admin/providers"),
    ("POST", "/admin/providers/{tenant}/{provider}/reset"),
    ("GET", "/admin/usage"),
    ("GET", "/admin/tools/pool"),
    ("PUT", "/admin/tools/pool"),
}
"""For the admin key alone."""


def routes_of(app: FastAPI) -> set[tuple[str, str]]:
    """(method, path) of everything that an application answers."""
    return {(method, path) for route in _flat(app.routes) for path, methods in [_named(route)] for method in methods}


def filled(path: str, ids: dict[str, str]) -> str:
    """A route's path with these ids in it."""
    return path.replace(":path}", "}").format(**ids)


def _flat(routes: Iterable[BaseRoute]) -> Iterator[BaseRoute]:
    for route in routes:
        inner = getattr(route, "original_router", None)
        if inner is None:
            yield route
        else:
            yield from _flat(inner.routes)


def _named(route: BaseRoute) -> tuple[str, set[str]]:
    path, methods = getattr(route, "path", None), getattr(route, "methods", None)
    assert isinstance(path, str), f"a route of an unknown kind: {route!r}"
    return path, set(methods or {"*"})
