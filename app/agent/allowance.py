"""What a turn and the turns below it may use together.

Each of them holds a :class:`Share`. Its budget is what the whole may use less what the others have used and have under way, so the pure
decisions of one turn keep the budget of all. Nothing here waits: between a look at a budget and the taking of its part nobody else comes.
"""

from dataclasses import dataclass

from app.agent.budget import Budget
from app.domain.children import ChildrenUse
from app.domain.turns import MachineState

_RESULTS = 2_000
"""Tokens that the closing call reads beside what the last one did."""


@dataclass(slots=True)
class _Taken:
    iterations: int = 0
    tokens: int = 0
    cost_usd: float = 0.0
    reserved: int = 0
    """Tokens that the open model call may use."""
    kept: int = 0
    """Tokens for the closing call, which the others leave alone."""


class Allowance:
    """The budget of a turn that is no child."""

    def __init__(self, total: Budget, before: ChildrenUse | None = None) -> None:
        """``before``: what children used before the turn went on here."""
        self._total = total
        before = before or ChildrenUse()
        earlier = before.usage.input_tokens + before.usage.output_tokens
        self._shares = [_Taken(iterations=before.iterations, tokens=earlier, cost_usd=before.cost_usd or 0.0)]

    def root(self) -> "Share":
        """The share of the turn itself, whose closing call is beyond the iterations."""
        return self._join(self._total)

    def child(self, max_iterations: int) -> "Share | None":
        """The share of a child, which begins with its first iteration; ``None`` when nothing is left."""
        left = self.left(None)
        if left.iterations < 1 or (left.tokens is not None and left.tokens <= 0) or (left.cost_usd is not None and left.cost_usd <= 0.0):
            return None
        share = self._join(Budget(iterations=max_iterations, closing_call=False))
        share.taken.iterations = 1
        return share

    def left(self, own: _Taken | None) -> Budget:
        """What is left for the holder of ``own``, its own use included."""
        others = [taken for taken in self._shares if taken is not own]
        tokens, cost = self._total.tokens, self._total.cost_usd
        promised = sum(taken.kept + taken.reserved for taken in others)
        price = sum(taken.cost_usd for taken in self._shares) / max(sum(taken.tokens for taken in self._shares), 1)
        return Budget(
            iterations=self._total.iterations - sum(taken.iterations for taken in others),
            tokens=None if tokens is None else tokens - promised - sum(taken.tokens for taken in others),
            cost_usd=None if cost is None else cost - promised * price - sum(taken.cost_usd for taken in others),
            token_usd=price,
        )

    def _join(self, own: Budget) -> "Share":
        taken = _Taken()
        self._shares.append(taken)
        return Share(self, own, taken)


class Share:
    """One turn's part of an allowance."""

    __slots__ = ("_allowance", "_own", "taken")

    def __init__(self, allowance: Allowance, own: Budget, taken: _Taken) -> None:
        self._allowance = allowance
        self._own = own
        self.taken = taken

    @property
    def allowance(self) -> Allowance:
        """The whole that it is a part of."""
        return self._allowance

    @property
    def budget(self) -> Budget:
        """What the turn may use in all, as of now."""
        left = self._allowance.left(self.taken)
        return Budget(
            iterations=min(self._own.iterations, left.iterations),
            tokens=left.tokens,
            cost_usd=left.cost_usd,
            token_usd=left.token_usd,
            closing_call=self._own.closing_call,
        )

    def leave(self, *, begun: bool) -> None:
        """The turn has ended: nothing of it is under way any more, what it used stays counted. One that never began has used nothing."""
        self.taken.reserved = 0
        if not begun:
            self.taken.iterations = 0

    def reserve(self, tokens: int) -> None:
        """A model call begins that may use so many."""
        self.taken.reserved = tokens

    def use(self, state: MachineState) -> None:
        """Take note of what the turn has used; its open call has ended."""
        taken = self.taken
        taken.iterations = state.iteration
        taken.tokens = state.usage.input_tokens + state.usage.output_tokens
        taken.cost_usd = state.cost_usd or 0.0
        taken.reserved = 0
        taken.kept = state.last_call_tokens + _RESULTS if self._own.closing_call and state.last_call_tokens else 0
