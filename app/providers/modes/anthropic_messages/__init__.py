"""The ``anthropic_messages`` API mode: ``POST {base_url}/messages`` with ``stream: true`` (Anthropic's Messages API)."""

from typing import Final

from app.domain.model import ModelRequest
from app.domain.tenants import Provider, Route
from app.providers.mode import StreamDecoder
from app.providers.modes.anthropic_messages.decoder import Decoder
from app.providers.modes.anthropic_messages.encoder import encode_request

VERSION: Final = "2023-06-01"
"""The only version of the protocol so far; the API refuses requests that name none."""


class AnthropicMessages:
    """The mode, as :class:`app.providers.mode.Mode`."""

    path = "/messages"

    def headers(self, provider: Provider) -> dict[str, str]:
        """The protocol's version, and the key unless the provider needs none."""
        headers = {"anthropic-version": VERSION}
        if provider.api_key:
            headers["x-api-key"] = provider.api_key
        return headers

    def encode(self, route: Route, request: ModelRequest) -> bytes:
        """The request body."""
        return encode_request(route, request)

    def decoder(self, request: ModelRequest, attempt: int) -> StreamDecoder:
        """A decoder of one response."""
        return Decoder(attempt, seed=f"{len(request.messages)}.{attempt}")
