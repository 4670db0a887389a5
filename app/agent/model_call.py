"""One model call being read: the provider layer's chunks in, the loop's facts out."""

from collections import deque

from app.agent import machine
from app.agent.facts import Arrivals, LoopFact
from app.domain.errors import ModelError
from app.domain.model import ModelReply, ModelRequest, RouteRef, RouteUse, estimated_usage
from app.domain.turns import MachineState
from app.ports import ModelClient


class ModelCall:
    """Facts one at a time; afterwards ``reply`` or ``failure`` is set, and ``state`` counts the attempts.

    An object with a method and not a generator: a token passes through here, and each generator on its way costs it a microsecond.
    """

    def __init__(self, model: ModelClient, request: ModelRequest, state: MachineState) -> None:
        self._batches = model.stream(request)
        self._facts: deque[LoopFact] = deque()
        self._model = model
        self._open_route: RouteRef | None = None
        self._input_tokens = request.input_tokens
        self.state = state
        self.reply: ModelReply | None = None
        self.failure: ModelError | None = None

    async def next(self) -> LoopFact | None:
        """The next fact, ``None`` when the call is over."""
        while not self._facts:
            try:
                batch = await anext(self._batches, None)
            except ModelError as error:
                self.failure = error
                return None
            if batch is None:
                return None
            arrivals = Arrivals.of(batch, self.state, self._open_route)
            self.state, self.reply, self._open_route = arrivals.state, arrivals.reply, arrivals.open_route
            self._facts.extend(arrivals.facts)
        return self._facts.popleft()

    def interrupted_state(self, shown_chars: int) -> MachineState:
        """The state should the call end now: a reply counts, and by estimate what an open attempt used that showed ``shown_chars``."""
        if self.reply is not None:
            return machine.count_reply(self.state, self.reply)
        if self._open_route is None:
            return self.state
        usage = estimated_usage(self._input_tokens, shown_chars)
        cost_usd = self._model.cost_usd(self._open_route, usage)
        return machine.count_interrupted(self.state, RouteUse(route=self._open_route, attempts=1, usage=usage, cost_usd=cost_usd))

    async def aclose(self) -> None:
        """Stop the call; closes the provider's socket."""
        await self._batches.aclose()
