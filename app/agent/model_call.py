"""One model call being read: the provider layer's chunks in, the loop's facts out."""

from collections import deque

from app.agent.facts import Arrivals, LoopFact
from app.domain.errors import ModelError
from app.domain.model import ModelReply, ModelRequest, RouteUse, estimated_usage
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
        self._route = model.primary
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
            arrivals = Arrivals.of(batch, self.state)
            self.state, self.reply = arrivals.state, arrivals.reply
            self._route = arrivals.next_route or self._route
            self._facts.extend(arrivals.facts)
        return self._facts.popleft()

    def use_so_far(self, shown_chars: int) -> RouteUse:
        """What the open attempt has used, by estimate, when it has shown ``shown_chars`` characters."""
        usage = estimated_usage(self._input_tokens, shown_chars)
        return RouteUse(route=self._route, attempts=1, usage=usage, cost_usd=self._model.cost_usd(self._route, usage))

    async def aclose(self) -> None:
        """Stop the call; closes the provider's socket."""
        await self._batches.aclose()
