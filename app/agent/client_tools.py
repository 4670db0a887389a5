"""Tools that run at the client: shown to the model beside the gateway's own, and what follows when the model calls them.

::

    calls of one reply             │ step of a turn that may not wait
    ───────────────────────────────┼─────────────────────────────────────────────────────────────────────────
    only the client's, all legible │ Finish completed: tool_calls; the results come with the client's next call
    of both kinds, or not legible  │ RunTools: the gateway's run, each of the client's is answered "not run"
    only the gateway's             │ RunTools, as ever

A turn that may wait pauses for its client's results (:mod:`app.agent.pausing`).

A tool of the client with the name of one of the gateway's stands in its place for this turn.
"""

from collections.abc import Iterable, Mapping

import msgspec
from typing_extensions import override

from app.agent.machine import AfterReply, Finish, RunTools
from app.domain.guardrails import ToolTraits
from app.domain.messages import ToolCall, ToolSpec
from app.domain.model import ModelOptions
from app.domain.tools import CLIENT_TOOLSET, ToolContext, ToolOutcome, refused
from app.domain.turns import Completed, CompletedReason
from app.ports import Toolbox

NOT_RUN = "Not run: this tool runs at the client and cannot be called together with others. Ask again for it alone."
_FREE_CHOICES = (None, "auto", "none")


class ClientTools(Toolbox):
    """A toolbox in which some tools are the client's: calls of those are answered unrun. ``waits``: the turn pauses for them."""

    def __init__(self, toolbox: Toolbox, specs: tuple[ToolSpec, ...], *, waits: bool = False) -> None:
        self._toolbox = toolbox
        self._specs = specs
        self._waits = waits
        self.names = frozenset(spec.name for spec in specs)
        self.size = len(msgspec.json.encode(specs)) if specs else 0
        """Bytes of the client's tool definitions."""

    def offered(self, own: tuple[ToolSpec, ...]) -> tuple[ToolSpec, ...]:
        """What the model is shown: the gateway's ``own`` tools and the client's, sorted by name."""
        if not self._specs:
            return own
        kept = (spec for spec in own if spec.name not in self.names)
        return tuple(sorted((*kept, *self._specs), key=lambda spec: spec.name))

    def enabled(self, own: tuple[ToolSpec, ...]) -> frozenset[str]:
        """The names that the gateway runs."""
        return frozenset(spec.name for spec in own) - self.names

    def judge(self, step: AfterReply) -> AfterReply:
        """End the turn where its calls are the client's to run."""
        if self._waits or not isinstance(step, RunTools) or step.bad_arguments or any(call.name not in self.names for call in step.calls):
            return step
        return self._leave(step)

    def _leave(self, step: RunTools) -> Finish:
        return Finish(outcome=Completed(reason=CompletedReason.TOOL_CALLS, output=step.said), message=step.message, unshown=step.unshown)

    @override
    def toolset_names(self) -> tuple[str, ...]:
        return self._toolbox.toolset_names()

    @override
    async def specs(self, toolsets: Iterable[str]) -> tuple[ToolSpec, ...]:
        return await self._toolbox.specs(toolsets)

    @override
    async def available(self) -> tuple[tuple[str, ...], tuple[ToolSpec, ...]]:
        return await self._toolbox.available()

    @override
    def traits(self) -> Mapping[str, ToolTraits]:
        return self._toolbox.traits()

    @override
    async def call(self, call: ToolCall, context: ToolContext) -> ToolOutcome:
        """Run one call, unless it is the client's."""
        if call.name in self.names:
            return msgspec.structs.replace(refused(NOT_RUN), toolset=CLIENT_TOOLSET)
        return await self._toolbox.call(call, context)


def options_of(options: ModelOptions, iteration: int) -> ModelOptions:
    """The options of one model call. A forced tool choice is for the first: later ones must be able to answer."""
    if iteration == 1 or options.tool_choice in _FREE_CHOICES:
        return options
    return msgspec.structs.replace(options, tool_choice=None)
