"""The ``responses`` API mode: ``POST {base_url}/responses`` with ``stream: true``, stateless (``store: false``).

Nothing is kept by the provider: each request brings the whole conversation, and reasoning goes back encrypted, without the ids that only
a stored response would have.
"""

from app.domain.model import ModelRequest
from app.domain.tenants import Provider, Route
from app.providers.mode import StreamDecoder
from app.providers.modes.responses.decoder import Decoder
from app.providers.modes.responses.encoder import encode_request


class Responses:
    """The mode, as :class:`app.providers.mode.Mode`."""

    path = "/responses"

    def headers(self, provider: Provider) -> dict[str, str]:
        """A bearer token, unless the provider needs none."""
        return {"Authorization": f"Bearer {provider.api_key}"} if provider.api_key else {}

    def encode(self, route: Route, request: ModelRequest) -> bytes:
        """The request body."""
        return encode_request(route, request)

    def decoder(self, request: ModelRequest, attempt: int) -> StreamDecoder:
        """A decoder of one response."""
        return Decoder(attempt, seed=f"{len(request.messages)}.{attempt}")
