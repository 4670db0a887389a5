"""What an API mode is to the rest of the provider layer: a request encoder and a stream decoder."""

from collections.abc import Sequence
from typing import Any, Protocol, TypeAlias

import msgspec

from app.domain.messages import ToolCall
from app.domain.model import Delta, FailureReason, FinishReason, ModelRequest, Usage
from app.domain.tenants import Provider, Route


class ReplyParts(msgspec.Struct, frozen=True, kw_only=True):
    """A complete reply as a decoder judged it; the fields are those of :class:`app.domain.model.ModelReply`."""

    text: str
    reasoning: str
    tool_calls: tuple[ToolCall, ...]
    bad_arguments: dict[str, str]
    finish: FinishReason
    calls_cut: bool = False
    replay: tuple[dict[str, Any], ...] = ()
    """Items that the same target wants back unchanged with this message."""


class ProviderError(msgspec.Struct, frozen=True):
    """An error that a provider reported inside a successful response, as decoded JSON."""

    value: object


Defect: TypeAlias = ProviderError | FailureReason
"""What is wrong with a stream: what the provider said, or what we saw."""


class StreamDecoder(Protocol):
    """Decodes one response. It is fed until it is ``done``, has a ``defect``, or the response ends."""

    usage: Usage
    """As reported last."""
    moved: bool
    """Whether the last ``feed`` held content of any kind (also such that gives no delta yet, like arguments)."""
    done: bool
    """The end of the stream was announced: nothing follows."""
    defect: Defect | None

    @property
    def finished(self) -> bool:
        """The reply's own end marker was seen: only what accompanies a reply, such as usage, may follow."""

    @property
    def written(self) -> int:
        """Characters of text, reasoning and calls that have come. Not for every token: it counts them all."""

    def feed(self, payloads: Sequence[bytes]) -> list[Delta]:
        """Take event payloads in order and return the deltas in them."""

    def feed_body(self, body: bytes) -> list[Delta]:
        """Take a response that is one JSON document instead of a stream."""

    def finish(self) -> ReplyParts | Defect:
        """Judge the reply after the last ``feed``."""


class Mode(Protocol):
    """One wire protocol."""

    path: str
    """Appended to a provider's base URL."""

    def headers(self, provider: Provider) -> dict[str, str]:
        """The headers that carry the credential."""

    def encode(self, route: Route, request: ModelRequest) -> bytes:
        """The request body; the same values always give the same bytes."""

    def decoder(self, request: ModelRequest, attempt: int) -> StreamDecoder:
        """A decoder for the response to ``request``, whose deltas carry ``attempt``."""
