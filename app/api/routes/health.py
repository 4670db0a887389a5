"""Liveness, readiness and metrics."""

from typing import Any

from fastapi import APIRouter, Depends, Request, Response

from app.api.authentication import admin
from app.api.metrics import CONTENT_TYPE, HttpMetrics
from app.api.services import services_of

router = APIRouter(tags=["operations"])

_EMPTY: dict[int | str, dict[str, Any]] = {200: {"description": "Yes."}}


@router.get("/livez", summary="Whether the process serves requests", response_class=Response, responses=_EMPTY)
@router.head("/livez", include_in_schema=False)
async def livez() -> Response:
    """200 as long as the process can answer at all."""
    return Response()


@router.get(
    "/readyz", summary="Whether this replica takes work", response_class=Response, responses={**_EMPTY, 503: {"description": "No."}}
)
@router.head("/readyz", include_in_schema=False)
async def readyz(request: Request) -> Response:
    """200 when the storage answers and the process is not shutting down, else 503; no reasons: this is open to everybody."""
    services = services_of(request)
    ready = not services.turns.draining and await services.readiness()
    return Response(status_code=200 if ready else 503)


@router.get(
    "/metrics",
    summary="Prometheus metrics of this process",
    dependencies=[Depends(admin)],
    response_class=Response,
    responses={200: {"description": "Prometheus' text format.", "content": {"text/plain": {"schema": {"type": "string"}}}}},
)
async def metrics(request: Request) -> Response:
    """Counters of requests, turns and attempts. With several workers each answers for itself."""
    numbers: HttpMetrics = request.app.state.metrics
    return Response(numbers.render(), headers={"Content-Type": CONTENT_TYPE})
