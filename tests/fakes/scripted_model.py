"""A model whose calls are scripted: :class:`app.ports.ModelClient` for tests of the loop."""

import asyncio
from collections.abc import AsyncGenerator, Sequence
from typing import TypeAlias

from typing_extensions import override

from app.domain.compaction import Room
from app.domain.errors import ModelError
from app.domain.messages import ToolCall
from app.domain.model import FinishReason, ModelChunk, ModelReply, ModelRequest, RouteRef, Usage
from app.ports import ModelClient

PRIMARY = RouteRef(provider="p1", model="m-test")
ROOM = Room(window=131_072, output_tokens=4_096)
USAGE = Usage(input_tokens=10, output_tokens=2)
"""Of every reply made here."""
Script: TypeAlias = Sequence[Sequence[ModelChunk] | ModelError | asyncio.Event]
"""One call: batches to yield, an error to raise, an event to wait for."""


class ScriptedModel(ModelClient):
    """The n-th call plays the n-th script. ``requests`` are the calls so far, ``closed`` counts those whose stream was closed or ended."""

    def __init__(self, *scripts: Script) -> None:
        self._scripts = list(scripts)
        self.requests: list[ModelRequest] = []
        self.closed = 0
        self.waiting = asyncio.Event()
        """Set once a call waits for the event of its script."""

    @property
    @override
    def primary(self) -> RouteRef:
        return PRIMARY

    @property
    @override
    def room(self) -> Room:
        return ROOM

    @override
    def cost_usd(self, route: RouteRef, usage: Usage) -> float | None:
        return None

    @override
    async def stream(self, request: ModelRequest) -> AsyncGenerator[Sequence[ModelChunk], None]:
        self.requests.append(request)
        try:
            for step in self._scripts[len(self.requests) - 1]:
                match step:
                    case ModelError():
                        raise step
                    case asyncio.Event():
                        self.waiting.set()
                        await step.wait()
                    case _:
                        yield step
        finally:
            self.closed += 1


def reply(
    text: str = "",
    *calls: ToolCall,
    attempt: int = 1,
    finish: FinishReason | None = None,
    bad_arguments: dict[str, str] | None = None,
) -> ModelReply:
    """A complete reply."""
    return ModelReply(
        attempt=attempt,
        route=PRIMARY,
        text=text,
        reasoning="",
        tool_calls=calls,
        bad_arguments=bad_arguments or {},
        finish=finish or (FinishReason.TOOL_CALLS if calls else FinishReason.STOP),
        usage=USAGE,
        cost_usd=None,
    )
