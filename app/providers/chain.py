"""A tenant's ordered routes as one model client."""

from collections.abc import AsyncGenerator, Callable, Sequence
from typing import assert_never

import msgspec
from typing_extensions import override

from app.domain.capabilities import missing_option
from app.domain.compaction import Room
from app.domain.delivery import Booked
from app.domain.errors import ModelUnavailableError
from app.domain.ids import TenantId
from app.domain.messages import Replay
from app.domain.model import (
    NO_OPTIONS,
    AttemptAccepted,
    AttemptFailed,
    FailureReason,
    ModelChunk,
    ModelReply,
    ModelRequest,
    RouteRef,
    Throttled,
    Usage,
)
from app.domain.tenants import Route
from app.ports import Clock, ModelClient
from app.providers.call import Call
from app.providers.classify import Failure, transport_failure
from app.providers.health import HealthBoard
from app.providers.limits import Limiter
from app.providers.mode import ReplyParts
from app.providers.rate_headers import read_limits
from app.providers.retry import GiveUp, NextRoute, Repeat, Situation, Step, next_step
from app.providers.selection import COOLDOWN, Choice, NoTarget, Selected, Selection, Wait
from app.providers.stream import Attempt
from app.providers.target import Target, targets_of
from app.providers.transport import ProviderTransport

LONGEST_WAIT_S = 65.0
"""What one model call waits at most for limits, where no other route can answer."""


class ProviderCounters:
    """What this process has seen of its providers since it started."""

    __slots__ = ("attempts", "failures", "replies", "skipped", "throttled")

    def __init__(self) -> None:
        self.attempts = 0
        self.replies = 0
        self.skipped = 0
        """Routes left out for a limit or a cool-down."""
        self.throttled = 0
        """Waits for one."""
        self.failures: dict[FailureReason, int] = dict.fromkeys(FailureReason, 0)


class ProviderLayer(msgspec.Struct, frozen=True, kw_only=True):
    """What all chains of a process share. ``random`` returns numbers in [0, 1)."""

    transport: ProviderTransport
    clock: Clock
    random: Callable[[], float]
    counters: ProviderCounters
    board: HealthBoard
    limiter: Limiter
    longest_wait_s: float = LONGEST_WAIT_S
    rest_s: Callable[[], float] = lambda: 0.0
    """How long a stream that has shown something leaves what arrives to its socket."""


_NOTHING = Usage()


class FallbackChain(ModelClient):
    """Asks one route after the other, as ``selection`` and ``retry`` decide, until one gives a complete reply."""

    def __init__(self, tenant_id: TenantId, routes: Sequence[Route], layer: ProviderLayer) -> None:
        self._targets = targets_of(tenant_id, routes)
        self._layer = layer
        self._selection = Selection(tenant_id, layer.board, layer.limiter, layer.clock, longest_wait_s=layer.longest_wait_s)

    @property
    @override
    def primary(self) -> RouteRef:
        """The route that is asked first."""
        return self._targets[0].ref

    @property
    @override
    def room(self) -> Room:
        """The window of that route."""
        route = self._targets[0].route
        return Room(window=route.context_window, output_tokens=route.output_tokens)

    @override
    def cost_usd(self, route: RouteRef, usage: Usage) -> float | None:
        """See :class:`app.ports.ModelClient`."""
        target = next((target for target in self._targets if target.ref == route), None)
        return None if target is None else target.route.cost_usd(usage)

    @override
    async def stream(self, request: ModelRequest) -> AsyncGenerator[Sequence[ModelChunk], None]:
        """See :class:`app.ports.ModelClient`. Between attempts it sleeps on the clock."""
        call = Call(request, self._able(request))
        try:
            choice = await self._selection.next(call)
            while True:
                notices = self._notices(call, choice)
                if notices:
                    yield notices
                if not isinstance(choice, Selected):
                    choice = await self._after_wait(choice, call)
                    continue
                if not await self._is_due(choice, call):
                    choice = await self._selection.next(call)
                    continue
                attempt = await self._begin(choice, call)
                if attempt.accepted:
                    yield (AttemptAccepted(call.number, choice.target.ref),)
                while deltas := await attempt.read():
                    call.shown = True
                    yield deltas
                attempt.close()
                outcome = await self._settled(choice, attempt)
                if isinstance(outcome, ReplyParts):
                    yield (_reply(choice.target, outcome, attempt.usage, call),)
                    return
                step = await self._judge(outcome, choice.target, call, arrived=attempt.arrived)
                following = await self._following(step, choice.target, call)
                yield (_record(call, choice.target, step, following),)
                choice = await self._advance(step, following, choice.target, call)
        finally:
            await self._release(call)

    def _able(self, request: ModelRequest) -> Sequence[Target]:
        """The routes that can be asked for all that the request wants. Raises ModelUnavailableError when there are none."""
        if request.options is NO_OPTIONS:
            return self._targets
        able = [target for target in self._targets if missing_option(target.route, request.options) is None]
        if not able:
            missing = missing_option(self._targets[0].route, request.options)
            detail = f"No route of the chain can be asked for the option {missing}."
            raise ModelUnavailableError(FailureReason.UNSUPPORTED, detail)
        return able

    async def _is_due(self, choice: Selected, call: Call) -> bool:
        """Wait for the place in the limits; false, and the place is given back, when it cannot be used any more."""
        remaining_s = choice.at - self._layer.clock.monotonic()
        if remaining_s > 0.0:
            await self._wait(call, remaining_s)
        if self._selection.holds(choice):
            return True
        if call.reserved is not None:
            await self._layer.limiter.give_back(call.reserved)
            call.reserved = None
        return False

    async def _begin(self, choice: Selected, call: Call) -> Attempt:
        """Send the request."""
        layer, target = self._layer, choice.target
        call.reserved = None
        if target is call.probing:
            call.probing = None  # it is being tried: its success or failure settles the matter
        call.count_try(target)
        call.shown = False
        layer.counters.attempts += 1
        attempt = Attempt(
            target.route,
            target.endpoint,
            target.mode.decoder(call.request, call.number),
            layer.rest_s,
            filled=call.request.input_tokens / target.route.context_window if call.request.input_tokens else None,
        )
        call.attempt = attempt
        await attempt.open(layer.transport, target.mode.encode(target.route, call.request), layer.clock)
        return attempt

    async def _release(self, call: Call) -> None:
        """Whatever way a call ends: its socket is closed, a place that was not used is given back."""
        if call.attempt is not None:
            call.attempt.close()
        if call.reserved is not None:
            await self._layer.limiter.give_back(call.reserved)
        if call.probing is not None:
            await self._layer.board.leave_probe(call.probing.keys)

    def _notices(self, call: Call, choice: Choice) -> Sequence[ModelChunk]:
        """What the caller is to know before the next step: routes left out, and a wait."""
        notices: list[ModelChunk] = [*call.notices]
        self._layer.counters.skipped += len(notices)
        call.notices.clear()
        call.reserved = choice.booking if isinstance(choice, Selected) else None
        match choice:
            case Selected(target=target, booking=Booked(limit=limit), delay_s=delay_s) if delay_s > 0.0:
                notices.append(Throttled(route=target.ref, limit=limit, delay_s=delay_s, skipped=False))
            case Wait(target=target, delay_s=delay_s):
                notices.append(Throttled(route=target.ref, limit=COOLDOWN, delay_s=delay_s, skipped=False))
            case _:
                return notices
        self._layer.counters.throttled += 1
        return notices

    async def _after_wait(self, choice: Wait | NoTarget, call: Call) -> Choice:
        if isinstance(choice, NoTarget):
            raise choice.error
        await self._wait(call, choice.delay_s)
        return await self._selection.next(call)

    async def _wait(self, call: Call, delay_s: float) -> None:
        call.waited_s += delay_s
        await self._layer.clock.sleep(delay_s)

    async def _pause(self, call: Call, delay_s: float) -> None:
        """Wait between two attempts on one route."""
        if call.failures[-1].retry_after_s is not None:
            await self._wait(call, delay_s)
        else:
            call.backed_off_s += delay_s
            await self._layer.clock.sleep(delay_s)

    async def _settled(self, choice: Selected, attempt: Attempt) -> ReplyParts | Failure:
        """The attempt's outcome, after making its booking right and taking note of what the provider said of its limits."""
        layer, usage, outcome = self._layer, attempt.usage, attempt.outcome
        if outcome is None:
            raise RuntimeError("an attempt ended without an outcome")
        # Of what broke off nobody knows the whole: its booking stays as large as it was.
        if choice.booking is not None and (attempt.counted or attempt.refused):
            await layer.limiter.settle(choice.booking, usage.input_tokens + usage.output_tokens)
        headers = attempt.headers
        if headers is not None and (limits := read_limits(headers, layer.clock.now())) is not None:
            await layer.limiter.learn(choice.target.keys, limits)
        if isinstance(outcome, ReplyParts):
            layer.counters.replies += 1
            await layer.board.succeeded(choice.target.keys, attempt.began_at)
        return outcome

    async def _judge(self, failure: Failure, target: Target, call: Call, *, arrived: bool) -> Step:
        if call.is_overflow(target, failure.reason):
            failure = transport_failure(FailureReason.CONTEXT_OVERFLOW)
        if failure.compact:
            call.refused_as_too_long(target, failure.window)
        call.failures.append(failure)
        self._layer.counters.failures[failure.reason] += 1
        step = next_step(failure, self._situation(target, call, arrived=arrived), random=self._layer.random())
        if failure.promised or not isinstance(step, Repeat):
            await self._layer.board.failed(target.keys, failure)
        return step

    def _situation(self, target: Target, call: Call, *, arrived: bool) -> Situation:
        route = target.route
        return Situation(
            tries=call.tries_on(target),
            max_attempts=route.max_attempts,
            patience_s=route.patience_s,
            longest_wait_s=self._layer.longest_wait_s - call.waited_s,
            others=self._selection.others(call, target),
            untried=call.untried(target),
            fitting=self._selection.fitting(call, target),
            backed_off_s=call.backed_off_s,
            arrived=arrived,
            amended=call.amended,
        )

    async def _following(self, step: Step, target: Target, call: Call) -> Choice | None:
        """The choice after a change of route, made before the failure is told so that the telling can name it."""
        if not isinstance(step, NextRoute):
            return None
        call.leave(target)
        choice = await self._selection.next(call)
        call.reserved = choice.booking if isinstance(choice, Selected) else None
        return choice

    async def _advance(self, step: Step, following: Choice | None, target: Target, call: Call) -> Choice:
        """Go to the next attempt. Raises the call's error when none follows."""
        match step:
            case Repeat():
                if step.amendment is not None:
                    call.amend(step.amendment)
                if step.delay_s > 0.0:
                    await self._pause(call, step.delay_s)
                return await self._selection.again(call, target)
            case NextRoute() if following is not None:
                return following
            case NextRoute() | GiveUp():
                raise call.error()
            case _:
                assert_never(step)


def _record(call: Call, target: Target, step: Step, following: Choice | None) -> AttemptFailed:
    failure = call.failures[-1]
    usage = _NOTHING if call.attempt is None else call.attempt.used(call.request.input_tokens)
    next_route, delay_s = None, 0.0
    if isinstance(step, Repeat):
        next_route, delay_s = target.ref, step.delay_s
    elif isinstance(following, Selected | Wait):
        next_route, delay_s = following.target.ref, following.delay_s
    failed = AttemptFailed(
        attempt=call.number,
        route=target.ref,
        reason=failure.reason,
        status=failure.status,
        message=failure.message,
        text_shown=call.shown,
        next_route=next_route,
        delay_s=delay_s,
        usage=usage,
        cost_usd=None if usage == _NOTHING else target.route.cost_usd(usage),
    )
    call.number += 1
    return failed


def _reply(target: Target, parts: ReplyParts, usage: Usage, call: Call) -> ModelReply:
    return ModelReply(
        attempt=call.number,
        route=target.ref,
        text=parts.text,
        reasoning=parts.reasoning,
        tool_calls=parts.tool_calls,
        bad_arguments=parts.bad_arguments,
        finish=parts.finish,
        usage=usage,
        cost_usd=target.route.cost_usd(usage),
        replay=Replay(origin=target.route.origin, items=parts.replay) if parts.replay else None,
        calls_cut=parts.calls_cut,
        window=target.route.context_window,
        may_grow=target.route.output_limit(call.request.options) < target.route.max_output_tokens,
    )
