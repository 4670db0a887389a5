"""Which target a call asks next: healthy, its limits kept, the request likely to fit; in the chain's order.

::

    1. in order: not cooling down, a probe won where one is needed, a place within its patience
    2. else in order: what cools down without a promise, tried all the same (nobody else can answer)
    3. else the earliest end of a promised cool-down or booking, waited for when that is soon enough
    4. else the call fails with the time
"""

import math
from collections.abc import Sequence
from typing import Final, assert_never

import msgspec

from app.domain.delivery import Booked, Refused
from app.domain.errors import ContextOverflowError, ModelError, ModelUnavailableError
from app.domain.ids import TenantId
from app.domain.model import FailureReason, Throttled
from app.ports import Clock
from app.providers.call import Call
from app.providers.health import Cooling, HealthBoard, Healthy, Probation
from app.providers.limits import Limiter
from app.providers.target import Target

COOLDOWN: Final = "cooldown"


LATE_S: Final = 1.0
"""A booked place that is not used within this time of its moment is given back: its second would hold a call that comes later."""


class Selected(msgspec.Struct, frozen=True):
    """Ask ``target`` at ``at`` (our monotonic clock), ``delay_s`` from the choice.

    ``booking`` is its place in the limits, if it has any.
    """

    target: Target
    booking: Booked | None
    delay_s: float
    at: float


class Wait(msgspec.Struct, frozen=True):
    """Nothing can be asked now: wait for the cool-down of ``target``, then select again."""

    target: Target
    delay_s: float


class NoTarget(msgspec.Struct, frozen=True):
    """The call ends with ``error``."""

    error: ModelError


Choice = Selected | Wait | NoTarget


class _Held(msgspec.Struct, frozen=True):
    """A target that could be asked ``delay_s`` from now; without a promise that is only what we think best."""

    target: Target
    limit: str
    delay_s: float
    promised: bool = True


class Selection:
    """Chooses targets for the calls of one tenant. ``longest_wait_s`` is what one call may wait for limits in all."""

    def __init__(self, tenant_id: TenantId, board: HealthBoard, limiter: Limiter, clock: Clock, *, longest_wait_s: float) -> None:
        self._tenant_id = tenant_id
        self._board = board
        self._limiter = limiter
        self._clock = clock
        self.longest_wait_s = longest_wait_s

    async def next(self, call: Call) -> Choice:
        """Choose; what is left out is noted in ``call.notices``."""
        doubtful: list[_Held] = []
        held: list[_Held] = []
        for target in call.open_targets:
            obstacle = await self._obstacle(call, target)
            if obstacle is None:
                choice = await self._book(call, target, target.route.patience_s)
                if isinstance(choice, Selected):
                    call.notices.extend(_skipped(one) for one in (*held, *doubtful))
                    return choice
                held.append(choice)
                await self._leave_probe(call)
            elif obstacle.promised:
                held.append(obstacle)
            else:
                doubtful.append(obstacle)
        return await self._last_resort(call, doubtful, held)

    async def again(self, call: Call, target: Target) -> Choice:
        """A place for another attempt on the same target; the whole chain is looked at when it has none soon enough.

        Somebody else may have been told a time to wait since: it is kept.
        """
        standing = self._board.standing(target.keys)
        if isinstance(standing, Cooling) and standing.promised_s > 0.0:
            if standing.promised_s <= target.route.patience_s:
                return Wait(target, standing.promised_s)
            call.notices.append(_skipped(_Held(target, COOLDOWN, standing.promised_s)))
            return await self.next(call)
        choice = await self._book(call, target, target.route.patience_s)
        if isinstance(choice, Selected):
            return choice
        call.notices.append(_skipped(choice))
        return await self.next(call)

    def holds(self, choice: Selected) -> bool:
        """Whether a choice may still be acted on: it is not late for its place, and nobody was told since to wait."""
        if choice.booking is not None and self._clock.monotonic() > choice.at + LATE_S:
            return False
        standing = self._board.standing(choice.target.keys)
        return not isinstance(standing, Cooling) or standing.promised_s <= 0.0

    def others(self, call: Call, present: Target) -> bool:
        """Whether another target can answer now."""
        return any(target is not present and not isinstance(self._board.standing(target.keys), Cooling) for target in call.open_targets)

    def fitting(self, call: Call, present: Target) -> bool:
        """Whether another target is likely to take the request as it is, and may be asked within its patience, healthy or not."""
        others = (target for target in call.open_targets if target is not present)
        return any(self._promised_s(target) <= target.route.patience_s for target in others)

    def _promised_s(self, target: Target) -> float:
        """For how long the target's provider asked to be left alone."""
        standing = self._board.standing(target.keys)
        return standing.promised_s if isinstance(standing, Cooling) else 0.0

    async def _leave_probe(self, call: Call) -> None:
        """A probe that was won is not made: others may."""
        if call.probing is not None:
            probing, call.probing = call.probing, None
            await self._board.leave_probe(probing.keys)

    async def _last_resort(self, call: Call, doubtful: Sequence[_Held], held: list[_Held]) -> Choice:
        """No target is free of doubt: ask a doubtful one, else wait for the earliest."""
        for doubt in doubtful:
            choice = await self._book(call, doubt.target, doubt.target.route.patience_s)
            if isinstance(choice, Selected):
                call.notices.extend(_skipped(one) for one in held)
                return choice
            held.append(choice)
        earliest = min(held, key=lambda one: one.delay_s, default=None)
        longest_s = self.longest_wait_s - call.waited_s
        if earliest is None:
            return NoTarget(self._smaller(call, longest_s) or call.error())
        call.notices.extend(_skipped(one) for one in held if one is not earliest)
        if call.too_long:  # a shorter request can be sent at once
            longest_s = min(longest_s, earliest.target.route.patience_s)
        if earliest.delay_s <= longest_s:
            if earliest.limit == COOLDOWN:
                return Wait(earliest.target, earliest.delay_s)
            choice = await self._book(call, earliest.target, longest_s)
            if isinstance(choice, Selected):
                return choice
            earliest = choice
        if call.too_long:
            return NoTarget(call.error())
        detail = f"Every route is at its limit; the first one is free again in {math.ceil(earliest.delay_s)} s."
        late = ModelUnavailableError(FailureReason.RATE_LIMIT, detail, retry_after_s=earliest.delay_s)
        return NoTarget(self._smaller(call, longest_s) or late)

    def _smaller(self, call: Call, longest_s: float) -> ModelError | None:
        """That the request is to become smaller, where a route with a smaller window could be asked within ``longest_s`` then."""
        small = next((target for target in call.too_small if self._promised_s(target) <= longest_s), None)
        if small is None or call.too_long:
            return None
        detail = "The request does not fit the window of the only route that can answer."
        return ContextOverflowError(FailureReason.CONTEXT_OVERFLOW, detail, window=small.route.context_window)

    async def _obstacle(self, call: Call, target: Target) -> _Held | None:
        """What stands against asking now."""
        standing = self._board.standing(target.keys)
        match standing:
            case Healthy():
                return None
            case Cooling():
                if standing.promised_s > 0.0:
                    return _Held(target, COOLDOWN, standing.promised_s)
                return _Held(target, COOLDOWN, standing.remaining_s, promised=False)
            case Probation():
                if call.probing is target or await self._board.try_probe(target.keys):
                    call.probing = target
                    return None
                return _Held(target, COOLDOWN, 0.0, promised=False)
            case _:
                assert_never(standing)

    async def _book(self, call: Call, target: Target, patience_s: float) -> Selected | _Held:
        limits = self._limiter.limits_for(self._tenant_id, target.route, target.keys)
        if not limits:
            return Selected(target, None, 0.0, self._clock.monotonic())
        tokens = call.request.input_tokens + target.route.output_limit(call.request.options)
        booking = await self._limiter.book(limits, tokens, patience_s)
        match booking:
            case Booked():
                return Selected(target, booking, booking.delay_s, self._clock.monotonic() + booking.delay_s)
            case Refused():
                return _Held(target, booking.limit, booking.delay_s)
            case _:
                assert_never(booking)


def _skipped(held: _Held) -> Throttled:
    return Throttled(route=held.target.ref, limit=held.limit, delay_s=held.delay_s, skipped=True)
