"""A tenant's ordered routes as one model client."""

from collections.abc import AsyncGenerator, Callable, Sequence
from typing import Final, assert_never

import msgspec
from typing_extensions import override

from app.domain.errors import ContextOverflowError, ModelError, ModelUnavailableError
from app.domain.model import (
    ApiMode,
    AttemptFailed,
    FailureReason,
    ModelChunk,
    ModelReply,
    ModelRequest,
    RouteRef,
    Usage,
)
from app.domain.tenants import Route
from app.ports import Clock, ModelClient
from app.providers.classify import Failure
from app.providers.mode import Mode, ReplyParts
from app.providers.modes.chat_completions import ChatCompletions
from app.providers.retry import GiveUp, NextRoute, Repeat, Step, next_step
from app.providers.stream import Attempt
from app.providers.transport import Endpoint, ProviderTransport, endpoint_of

_CHAT_COMPLETIONS: Final = ChatCompletions()


def mode_of(api_mode: ApiMode) -> Mode:
    """The implementation of an API mode."""
    match api_mode:
        case ApiMode.CHAT_COMPLETIONS:
            return _CHAT_COMPLETIONS
        case _:
            assert_never(api_mode)


class ProviderCounters:
    """What this process has seen of its providers since it started."""

    __slots__ = ("attempts", "failures", "replies")

    def __init__(self) -> None:
        self.attempts = 0
        self.replies = 0
        self.failures: dict[FailureReason, int] = dict.fromkeys(FailureReason, 0)


class ProviderLayer(msgspec.Struct, frozen=True, kw_only=True):
    """What all chains of a process share. ``random`` returns numbers in [0, 1)."""

    transport: ProviderTransport
    clock: Clock
    random: Callable[[], float]
    counters: ProviderCounters
    rest_s: Callable[[], float] = lambda: 0.0
    """How long a stream that has shown something leaves what arrives to its socket."""


class _Target(msgspec.Struct, frozen=True):
    """A route made ready."""

    route: Route
    ref: RouteRef
    mode: Mode
    endpoint: Endpoint


class _Call:
    """What has happened so far in one model call."""

    __slots__ = ("cost_usd", "failed", "number", "place", "tries", "usage")

    def __init__(self, first_attempt: int) -> None:
        self.number = first_attempt
        self.place = 0
        self.tries = 0
        self.failed: list[AttemptFailed] = []
        self.usage = Usage()
        self.cost_usd: float | None = 0.0

    def charge(self, route: Route, usage: Usage) -> None:
        """Add an attempt's usage; the cost becomes unknown with the first used route that has no prices."""
        if usage == _NOTHING:
            return
        cost = route.cost_usd(usage)
        self.usage = self.usage + usage
        self.cost_usd = None if cost is None or self.cost_usd is None else self.cost_usd + cost


_NOTHING: Final = Usage()


class FallbackChain(ModelClient):
    """Asks one route after the other, as ``providers/retry.py`` decides, until one gives a complete reply."""

    def __init__(self, routes: Sequence[Route], layer: ProviderLayer) -> None:
        self._targets = _targets(routes)
        self._layer = layer

    @property
    @override
    def primary(self) -> RouteRef:
        """The route that is asked first."""
        return self._targets[0].ref

    @override
    async def stream(self, request: ModelRequest) -> AsyncGenerator[Sequence[ModelChunk], None]:
        """See :class:`app.ports.ModelClient`. Between attempts it sleeps on the clock."""
        layer = self._layer
        call = _Call(request.first_attempt)
        while True:
            target = self._targets[call.place]
            call.tries += 1
            layer.counters.attempts += 1
            decoder = target.mode.decoder(request, call.number)
            attempt = Attempt(target.route, target.endpoint, decoder, layer.rest_s)
            shown = False
            try:
                await attempt.open(layer.transport, target.mode.encode(target.route, request), layer.clock)
                while deltas := await attempt.read():
                    shown = True
                    yield deltas
            finally:
                attempt.close()
            call.charge(target.route, attempt.usage)
            outcome = attempt.outcome
            if isinstance(outcome, ReplyParts):
                layer.counters.replies += 1
                yield (_reply(target, outcome, call),)
                return
            if outcome is None:
                raise RuntimeError("an attempt ended without an outcome")
            step = self._decide(outcome, call, arrived=attempt.arrived)
            yield (self._record(outcome, step, call, shown=shown),)
            delay_s = self._advance(step, call)
            if delay_s > 0.0:
                await layer.clock.sleep(delay_s)

    def _decide(self, failure: Failure, call: _Call, *, arrived: bool) -> Step:
        self._layer.counters.failures[failure.reason] += 1
        return next_step(
            failure,
            tries=call.tries,
            max_attempts=self._targets[call.place].route.max_attempts,
            more_routes=call.place + 1 < len(self._targets),
            arrived=arrived,
            random=self._layer.random(),
        )

    def _record(self, failure: Failure, step: Step, call: _Call, *, shown: bool) -> AttemptFailed:
        delay_s = 0.0
        match step:
            case Repeat():
                next_route: RouteRef | None = self._targets[call.place].ref
                delay_s = step.delay_s
            case NextRoute():
                next_route = self._targets[call.place + 1].ref
            case GiveUp():
                next_route = None
            case _:
                assert_never(step)
        failed = AttemptFailed(
            attempt=call.number,
            route=self._targets[call.place].ref,
            reason=failure.reason,
            status=failure.status,
            message=failure.message,
            text_shown=shown,
            next_route=next_route,
            delay_s=delay_s,
        )
        call.failed.append(failed)
        return failed

    def _advance(self, step: Step, call: _Call) -> float:
        """Go to the next attempt; returns the wait before it. Raises the call's error when none follows."""
        call.number += 1
        match step:
            case Repeat():
                return step.delay_s
            case NextRoute():
                call.place += 1
                call.tries = 0
                return 0.0
            case GiveUp():
                raise _error(call)
            case _:
                assert_never(step)


def _error(call: _Call) -> ModelError:
    last = call.failed[-1]
    kind = ContextOverflowError if last.reason is FailureReason.CONTEXT_OVERFLOW else ModelUnavailableError
    return kind(last.reason, last.message, tuple(call.failed), usage=call.usage, cost_usd=call.cost_usd if call.usage != _NOTHING else None)


def _reply(target: _Target, parts: ReplyParts, call: _Call) -> ModelReply:
    return ModelReply(
        attempt=call.number,
        route=target.ref,
        text=parts.text,
        reasoning=parts.reasoning,
        tool_calls=parts.tool_calls,
        bad_arguments=parts.bad_arguments,
        finish=parts.finish,
        usage=call.usage,
        cost_usd=call.cost_usd if target.route.prices is not None else None,
    )


def _targets(routes: Sequence[Route]) -> tuple[_Target, ...]:
    """Make routes ready; of several names for the same address, credential and model only the first stays."""
    targets: dict[tuple[str, str, str], _Target] = {}
    for route in routes:
        provider = route.provider
        key = (provider.base_url.strip().rstrip("/"), provider.api_key, route.model)
        if key not in targets:
            mode = mode_of(provider.api_mode)
            targets[key] = _Target(route, route.ref, mode, endpoint_of(route, mode))
    return tuple(targets.values())
