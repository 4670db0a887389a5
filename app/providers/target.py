"""A route made ready to be asked, and a chain's routes in their order."""

from collections.abc import Sequence
from typing import Final, assert_never

import msgspec

from app.domain.ids import TenantId
from app.domain.model import ApiMode, RouteRef
from app.domain.targets import TargetKeys, target_keys
from app.domain.tenants import Route
from app.providers.mode import Mode
from app.providers.modes.anthropic_messages import AnthropicMessages
from app.providers.modes.chat_completions import ChatCompletions
from app.providers.modes.responses import Responses
from app.providers.transport import Endpoint, endpoint_of

_CHAT_COMPLETIONS: Final = ChatCompletions()
_RESPONSES: Final = Responses()
_ANTHROPIC_MESSAGES: Final = AnthropicMessages()


class Target(msgspec.Struct, frozen=True):
    """A route made ready."""

    route: Route
    ref: RouteRef
    mode: Mode
    endpoint: Endpoint
    keys: TargetKeys
    place: int
    """In its chain, from 0."""


def mode_of(api_mode: ApiMode) -> Mode:
    """The implementation of an API mode."""
    match api_mode:
        case ApiMode.CHAT_COMPLETIONS:
            return _CHAT_COMPLETIONS
        case ApiMode.RESPONSES:
            return _RESPONSES
        case ApiMode.ANTHROPIC_MESSAGES:
            return _ANTHROPIC_MESSAGES
        case _:
            assert_never(api_mode)


def targets_of(tenant_id: TenantId, routes: Sequence[Route]) -> tuple[Target, ...]:
    """Make routes ready; of several names for the same address, credential and model only the first stays."""
    targets: dict[tuple[str, str], Target] = {}
    for route in routes:
        keys = target_keys(tenant_id, route)
        name = (keys.key_model, route.provider.api_mode.value)
        if name not in targets:
            mode = mode_of(route.provider.api_mode)
            targets[name] = Target(route, route.ref, mode, endpoint_of(route, mode), keys, len(targets))
    return tuple(targets.values())
