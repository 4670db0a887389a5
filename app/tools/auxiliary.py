"""Model calls that tools make for a turn: on the tenant's own chains, shown to nobody, their use the turn's."""

from contextlib import aclosing
from dataclasses import dataclass
from typing import Final

from app.domain.compaction import Room
from app.domain.errors import InvalidRequestError, ModelError, UnavailableError
from app.domain.ids import TenantId
from app.domain.messages import Content, Message, Role
from app.domain.model import AttemptFailed, ModelReply, ModelRequest, RouteUse
from app.domain.tenants import Purpose
from app.ports import ModelClient, ModelClients, TenantStore

BYTES_PER_TOKEN: Final = 4
IMAGE_TOKENS: Final = 1_500


@dataclass(frozen=True, slots=True, kw_only=True)
class Said:
    """What a model answered: ``text`` is empty when it did not, ``fault`` then says why and is safe to show. ``uses`` is what it took."""

    text: str
    fault: str = ""
    uses: tuple[RouteUse, ...] = ()


class NoModelError(Exception):
    """The tenant has no chain to ask. The text is safe to show."""


class Auxiliary:
    """Asks the chains of tenants."""

    def __init__(self, models: ModelClients, tenants: TenantStore) -> None:
        self._models = models
        self._tenants = tenants

    async def model(self, tenant_id: TenantId, purpose: Purpose) -> "AuxiliaryModel":
        """The tenant's chain for ``purpose``, its chat chain when it has none. Raises NoModelError."""
        try:
            tenant = await self._tenants.tenant(tenant_id)
            if tenant is None:
                raise NoModelError("The tenant is disabled.")
            return AuxiliaryModel(self._models.for_purpose(tenant, purpose))
        except InvalidRequestError as error:
            raise NoModelError(error.detail) from None
        except UnavailableError:
            raise NoModelError("The gateway's database does not answer.") from None


class AuxiliaryModel:
    """One chain."""

    def __init__(self, client: ModelClient) -> None:
        self._client = client

    @property
    def room(self) -> Room:
        """The window of the route that is asked first."""
        return self._client.room

    async def ask(self, system: str, content: Content, *, images: int = 0) -> Said:
        """Ask once. Never raises for what models and providers do; ``images`` are those in ``content``."""
        text = content if isinstance(content, str) else "".join(str(part.get("text", "")) for part in content)
        request = ModelRequest(
            system=system,
            messages=(Message(role=Role.USER, content=content),),
            tools=(),
            first_attempt=1,
            input_tokens=len((system + text).encode("utf-8", "surrogatepass")) // BYTES_PER_TOKEN + images * IMAGE_TOKENS + 1,
        )
        uses: list[RouteUse] = []
        try:
            reply = await self._reply(request, uses)
        except ModelError as error:
            return Said(text="", fault=error.detail, uses=tuple(uses))
        fault = "" if reply.text.strip() else "The model gave no answer."
        return Said(text=reply.text.strip(), fault=fault, uses=tuple(uses))

    async def _reply(self, request: ModelRequest, uses: list[RouteUse]) -> ModelReply:
        """Adds what each attempt took to ``uses``. Raises ModelError."""
        reply: ModelReply | None = None
        async with aclosing(self._client.stream(request)) as batches:
            async for batch in batches:
                for chunk in batch:
                    match chunk:
                        case AttemptFailed(route=route, usage=usage, cost_usd=cost_usd):
                            uses.append(RouteUse(route=route, attempts=1, failed=1, usage=usage, cost_usd=cost_usd))
                        case ModelReply(route=route, usage=usage, cost_usd=cost_usd):
                            uses.append(RouteUse(route=route, attempts=1, usage=usage, cost_usd=cost_usd))
                            reply = chunk
                        case _:
                            pass
        if reply is None:
            raise RuntimeError("a model stream ended without its reply")
        return reply
