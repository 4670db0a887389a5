"""The FastAPI application of the gateway."""

from collections.abc import Callable

from fastapi import FastAPI
from fastapi.routing import APIRoute

from app.api import errors, openai_errors, openapi, turn_answers
from app.api.facades import routes as facades
from app.api.metrics import HttpMetrics
from app.api.middleware import DOCS_PATH, Edge
from app.api.routes import admin, admin_tools, health, kanban, sessions, summaries, tool_results, turns
from app.api.services import Services

_DESCRIPTION = """Runs LLM agents for many tenants: post a turn, read the agent's work as Server-Sent Events.

Errors are `application/problem+json` with a stable `code`; below `/v1` they are OpenAI's error objects.
Listings are pages: pass `next_cursor` as `cursor` to get on."""


def create_api(services: Services) -> FastAPI:
    """The application over ``services``. Several of them may live in one process."""
    app = FastAPI(
        title="Agent gateway",
        version=services.version,
        description=_DESCRIPTION,
        redirect_slashes=False,
        docs_url=DOCS_PATH,
        redoc_url=None,
        swagger_ui_oauth2_redirect_url=None,
        generate_unique_id_function=_operation_ids(),
    )
    app.state.services = services
    app.state.metrics = HttpMetrics(services.turns.counters, services.cooling)
    turns.add_start_route(app)
    routers = (
        *(sessions.router, summaries.router, kanban.router, turns.router, tool_results.router, facades.router),
        *(admin.router, admin_tools.router, health.router),
    )
    for router in routers:
        app.include_router(router)
    errors.install(app, [*app.routes, *(route for router in routers for route in router.routes)])
    openai_errors.install(app)
    shapes = (*sessions.SHAPES, *summaries.SHAPES, *kanban.SHAPES, *turn_answers.SHAPES)
    openapi.install(app, shapes, (*sessions.MODELS, *turns.MODELS, *tool_results.MODELS, *facades.MODELS))
    app.add_middleware(Edge, clock=services.clock, metrics=app.state.metrics, max_body_bytes=services.max_body_bytes)
    return app


def _operation_ids() -> Callable[[APIRoute], str]:
    """Ids for SDK generators: a function's name, and for its second route (an alias) the name with the method."""
    first: dict[str, tuple[str, frozenset[str]]] = {}

    def operation_id(route: APIRoute) -> str:
        methods = frozenset(route.methods or ())
        known = first.setdefault(route.name, (route.path, methods))
        return route.name if known == (route.path, methods) else "_".join((route.name, *sorted(methods))).lower()

    return operation_id
