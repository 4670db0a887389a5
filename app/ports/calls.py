"""Models, tools and child turns, as the agent calls them."""

from collections.abc import AsyncGenerator, Iterable, Mapping, Sequence
from typing import Protocol

from app.domain.children import ChildNews, ChildTask
from app.domain.compaction import Room
from app.domain.guardrails import ToolTraits
from app.domain.ids import TurnId
from app.domain.messages import ToolCall, ToolSpec
from app.domain.model import ModelChunk, ModelRequest, RouteRef, Usage
from app.domain.tenants import Purpose, Tenant
from app.domain.tools import ToolContext, ToolOutcome


class ModelClient(Protocol):
    """Something that answers model calls: one route, or a chain of them."""

    @property
    def primary(self) -> RouteRef:
        """The route that is asked first."""

    @property
    def room(self) -> Room:
        """The context window of that route."""

    def cost_usd(self, route: RouteRef, usage: Usage) -> float | None:
        """What ``usage`` costs on one of its routes; ``None`` when it has no prices, or the route is not one of them."""

    def stream(self, request: ModelRequest) -> AsyncGenerator[Sequence[ModelChunk], None]:
        """Yield batches of chunks (what arrived together comes together); the last chunk is one ``ModelReply``.

        Raises ContextOverflowError or ModelUnavailableError after the last ``AttemptFailed``. Closing the iterator, or cancelling
        the task that reads it, closes the provider's socket at once.
        """


class ModelClients(Protocol):
    """The model clients of all tenants."""

    def for_chat(self, tenant: Tenant, model: str | None) -> ModelClient:
        """The tenant's ``chat`` chain, beginning at the route named ``model`` when one is given.

        Raises InvalidRequestError when the chain has no such model, or the tenant no chain.
        """

    def for_purpose(self, tenant: Tenant, purpose: Purpose) -> ModelClient:
        """The tenant's chain for ``purpose``, its ``chat`` chain when it has none. Raises InvalidRequestError when it has neither."""


class Toolbox(Protocol):
    """The tools that the turns of one tenant can call."""

    def toolset_names(self) -> tuple[str, ...]:
        """Every toolset that a session may enable."""

    def default_toolsets(self) -> tuple[str, ...]:
        """Those of a session that names none."""
        return self.toolset_names()

    async def specs(self, toolsets: Iterable[str]) -> tuple[ToolSpec, ...]:
        """The tools of these toolsets, sorted by name.

        Raises InvalidRequestError for an unknown toolset, UnavailableError (``toolset_unavailable``) for one whose tools are listed by a
        server that does not answer.
        """

    async def available(self) -> tuple[tuple[str, ...], tuple[ToolSpec, ...]]:
        """The toolsets of a session that names none, and their tools: the default ones but those whose tools cannot be listed now."""
        names = self.default_toolsets()
        return names, await self.specs(names)

    def traits(self) -> Mapping[str, ToolTraits]:
        """What guardrails have to know of tools, by name; a tool that is left out has no special traits."""
        return {}

    async def call(self, call: ToolCall, context: ToolContext) -> ToolOutcome:
        """Run one call. Never raises for what the tool or the model did; cancellation passes through."""


class Toolboxes(Protocol):
    """The toolboxes of all tenants."""

    def for_tenant(self, tenant: Tenant) -> Toolbox:
        """The tenant's toolbox: the tools of the process, and the tenant's own. No I/O."""


class ChildTurns(Protocol):
    """The child turns of one turn. They run in its process, under its lease and its budget, and end before it."""

    def run(self, task: ChildTask) -> AsyncGenerator[ChildNews, None]:
        """Start a child and yield its beginning, and its end unless it is in the background; or that it was refused.

        Closing the iterator interrupts the child, also one that is just being written, and waits for its end. One in the background is
        interrupted when its parent ends.
        """

    def news(self) -> list[ChildNews]:
        """Children that have ended and were not told yet; now they are. One whose beginning was not told either comes with it. No I/O."""

    def told(self, *, started: Iterable[TurnId], ended: Iterable[TurnId]) -> None:
        """The beginnings and the ends of these children are among the facts of their parent. No I/O."""


class ToolCapacity(Protocol):
    """How many tool calls this process runs at once, of all turns together."""

    @property
    def size(self) -> int:
        """Calls that may run at once."""

    @property
    def running(self) -> int:
        """Calls that run; above ``size`` for a while after that was lowered."""

    @property
    def waiting(self) -> int:
        """Calls that wait for a place."""

    def resize(self, size: int) -> None:
        """Allow another number: more begin at once, those that run too many end first, and what waits goes on waiting."""
