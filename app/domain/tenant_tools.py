"""The tools that a tenant brings along: webhooks, as configured and as called."""

import enum
from collections.abc import Callable
from typing import Any, Final, TypeAlias

import msgspec
from typing_extensions import override

WEBHOOKS_TOOLSET: Final = "webhooks"
SIGNING_PREFIX: Final = "whsec_"
"""Of a signing secret in the form of Standard Webhooks; what follows is base64."""


class WebhookMethod(enum.StrEnum):
    """How a webhook is called: always with a body, which is what is signed."""

    POST = "POST"
    PUT = "PUT"


class WebhookToolSpec(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A tool that is a webhook of the tenant, as configured.

    ``parameters`` is a JSON schema of type object. ``secret`` signs the calls: ``env:NAME`` or a literal (encrypted at rest), plain or as
    ``whsec_`` with base64; absent when read back, but for ``env:``. Written without one, a tool keeps the secret it has; an empty one
    removes it. Values of ``headers`` are masked when read back. ``timeout_s`` is for a call with all its repeats; only an ``idempotent``
    tool is called again after a failure. ``read_only`` and ``polling`` are for the guardrails. ``secret_arguments`` are names of
    arguments that no log and no event shows. ``needs_approval``: somebody has to approve each call.
    """

    name: str
    description: str
    url: str
    parameters: dict[str, Any] = msgspec.field(default_factory=lambda: {"type": "object", "properties": {}})
    method: WebhookMethod = WebhookMethod.POST
    secret: str | None = None
    headers: dict[str, str] = {}
    timeout_s: float = 30.0
    idempotent: bool = False
    read_only: bool = False
    polling: bool = False
    needs_approval: bool = False
    secret_arguments: tuple[str, ...] = ()

    @override
    def __repr__(self) -> str:
        return f"WebhookToolSpec(name={self.name!r})"  # never the secret: reprs reach logs


EditTools: TypeAlias = Callable[[tuple[WebhookToolSpec, ...]], tuple[WebhookToolSpec, ...]]
"""Makes a tenant's tools out of the present ones."""


class WebhookTool(msgspec.Struct, frozen=True, kw_only=True):
    """A webhook as it is called: ``key`` is the decoded secret, ``headers`` are decrypted.

    ``key`` is ``None`` when the calls are not signed. ``usable`` is false when a secret is configured and cannot be had: such a tool is
    not called at all.
    """

    name: str
    description: str
    url: str
    parameters: dict[str, Any]
    method: WebhookMethod
    key: bytes | None
    usable: bool
    headers: dict[str, str]
    timeout_s: float
    idempotent: bool
    read_only: bool
    polling: bool
    needs_approval: bool
    secret_arguments: tuple[str, ...]

    @override
    def __repr__(self) -> str:
        return f"WebhookTool(name={self.name!r})"
