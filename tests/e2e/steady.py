"""Chains for tests that count requests: their deadlines are long, so that a busy machine costs no attempt."""

from contextlib import AbstractAsyncContextManager
from typing import Any, Final

from app.domain.model import ApiMode
from tests.e2e.chains import Link, chain
from tests.e2e.harness import Client
from tests.e2e.stage import Stage

DEADLINES: Final = {"first_token_timeout_s": 20.0, "stale_timeout_s": 20.0}


def steady(stage: Stage, mode: ApiMode = ApiMode.CHAT_COMPLETIONS, *, routes: int = 1, **route: Any) -> AbstractAsyncContextManager[Client]:
    """A client of a new tenant whose chain has one route to the stage's provider, or several like it."""
    links = [Link(url=stage.provider.base_url, mode=mode)] * routes
    return chain(stage, *links, **DEADLINES, **route)
