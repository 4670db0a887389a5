"""One call of a webhook: signed as Standard Webhooks asks for, sent through the guard, repeated only where that does no harm.

The body is ``{"type": "tool.call", "tool", "tool_call_id", "turn_id", "session_id", "tenant", "arguments"}``. ``webhook-id``, also sent as
``Idempotency-Key``, is the same in all repeats of a call; ``webhook-signature`` is ``v1,`` and the base64 of the HMAC-SHA256 of
``id.timestamp.body``.
"""

import asyncio
import base64
import hashlib
import hmac
import re
from collections.abc import Mapping
from dataclasses import dataclass
from email.utils import parsedate_to_datetime
from typing import Any, Final

import httpx

from app.domain.messages import canonical_json, clean_text
from app.domain.tenant_tools import WebhookTool
from app.domain.tools import CallStatus, ToolContext, ToolOutcome, refused
from app.ports import Clock
from app.tools.http_body import ACCEPT_ENCODING, Body, UnreadableBodyError, read_body
from app.tools.outbound import CONNECT_TIMEOUT_S, Outbound, OutboundRefusedError
from app.tools.redaction import fit_to_show

MAX_BODY: Final = 1_048_576
"""Bytes that are read of an answer."""
MAX_EXCERPT: Final = 2_000
"""Characters that are shown of an answer that is an error."""
_MAX_REPEATS: Final = 2
_FIRST_DELAY_S: Final = 0.5
_TOO_MANY: Final = 429
_PLAIN_ID: Final = re.compile(r"[A-Za-z0-9_-]{1,128}")


@dataclass(frozen=True, slots=True, kw_only=True)
class Attempt:
    """What came of one request: the result, whether another may do better, and after how long, if the webhook said so."""

    outcome: ToolOutcome
    repeatable: bool = False
    delay_s: float | None = None


class WebhookCaller:
    """Calls webhooks."""

    def __init__(self, outbound: Outbound, clock: Clock) -> None:
        self._outbound = outbound
        self._clock = clock

    async def call(self, tool: WebhookTool, arguments: Mapping[str, Any], context: ToolContext, *, tenant: str) -> ToolOutcome:
        """Run one call. Never raises for what the webhook did; cancellation closes the socket."""
        if not tool.usable:
            return refused("The tool is not configured completely: its secret is not to be had. It was not called.")
        call_id = call_id_of(context)
        body = _body(tool.name, arguments, context, tenant=tenant)
        timeout = httpx.Timeout(tool.timeout_s, connect=min(CONNECT_TIMEOUT_S, tool.timeout_s))
        try:
            async with asyncio.timeout(tool.timeout_s), self._outbound.client(timeout=timeout) as client:
                return await self._repeat(client, tool, call_id, body)
        except TimeoutError:
            return _timeout(f"The webhook did not answer within {tool.timeout_s:g} s; the effect of the call is unknown.")

    async def _repeat(self, client: httpx.AsyncClient, tool: WebhookTool, call_id: str, body: bytes) -> ToolOutcome:
        deadline = self._clock.monotonic() + tool.timeout_s
        repeats = 0
        while True:
            attempt = await self._attempt(client, tool, call_id, body)
            delay = _FIRST_DELAY_S * 2**repeats if attempt.delay_s is None else attempt.delay_s
            may_repeat = attempt.repeatable and tool.idempotent and repeats < _MAX_REPEATS
            if not may_repeat or self._clock.monotonic() + delay >= deadline:
                return attempt.outcome
            await self._clock.sleep(delay)
            repeats += 1

    async def _attempt(self, client: httpx.AsyncClient, tool: WebhookTool, call_id: str, body: bytes) -> Attempt:
        timestamp = int(self._clock.now().timestamp())
        headers = {
            "User-Agent": "agent-gateway",
            "Accept": "application/json, text/*;q=0.9",
            **tool.headers,
            "Accept-Encoding": ACCEPT_ENCODING,
            "Content-Type": "application/json",
            "Idempotency-Key": call_id,
            **signed(tool.key, call_id, timestamp, body),
        }
        try:
            async with client.stream(tool.method.value, tool.url, content=body, headers=headers) as response:
                return self._judged(response, await read_body(response, MAX_BODY))
        except (OutboundRefusedError, UnreadableBodyError) as error:
            return Attempt(outcome=_error(str(error)))
        except (httpx.ConnectError, httpx.ConnectTimeout):
            return Attempt(outcome=_error("No connection to the webhook came about; it was not called."), repeatable=True)
        except httpx.TimeoutException:
            return Attempt(outcome=_timeout("The webhook did not answer in time; the effect of the call is unknown."), repeatable=True)
        except (httpx.HTTPError, httpx.StreamError, httpx.InvalidURL):
            text = "The connection to the webhook broke, or what came back was not HTTP; the effect of the call is unknown."
            return Attempt(outcome=_error(text), repeatable=True)

    def _judged(self, response: httpx.Response, body: Body) -> Attempt:
        status = response.status_code
        if response.is_success:
            return Attempt(outcome=ToolOutcome(output=_shown(body)))
        if response.is_redirect:
            return Attempt(outcome=_error(f"The webhook answered {status}, a redirect; those are not followed."))
        outcome = _error(f"The webhook answered {status}.{_excerpt(body)}")
        repeatable = status == _TOO_MANY or response.is_server_error
        return Attempt(outcome=outcome, repeatable=repeatable, delay_s=self._retry_after(response.headers.get("retry-after", "")))

    def _retry_after(self, value: str) -> float | None:
        """Seconds; ``None`` when the webhook said nothing that can be read."""
        text = value.strip()
        if text.isascii() and text.isdigit():
            return float(text[:9])
        try:
            moment = parsedate_to_datetime(text)
        except ValueError:
            return None
        return max(0.0, moment.timestamp() - self._clock.now().timestamp())


def call_id_of(context: ToolContext) -> str:
    """The id of a call over all its repeats: unique, and without the full stop that separates the parts of what is signed."""
    if _PLAIN_ID.fullmatch(context.call_id) is not None:
        return f"{context.turn_id}_{context.call_id}"
    return f"{context.turn_id}_{hashlib.sha256(context.call_id.encode('utf-8', 'surrogatepass')).hexdigest()[:32]}"


def signed(key: bytes | None, call_id: str, timestamp: int, body: bytes) -> dict[str, str]:
    """The headers of Standard Webhooks; without a signature where there is no ``key``."""
    headers = {"webhook-id": call_id, "webhook-timestamp": str(timestamp)}
    if key is not None:
        digest = hmac.digest(key, b"%b.%d.%b" % (call_id.encode("ascii"), timestamp, body), "sha256")
        headers["webhook-signature"] = f"v1,{base64.b64encode(digest).decode('ascii')}"
    return headers


def _body(tool: str, arguments: Mapping[str, Any], context: ToolContext, *, tenant: str) -> bytes:
    call = {
        "type": "tool.call",
        "tool": tool,
        "tool_call_id": context.call_id,
        "turn_id": context.turn_id,
        "session_id": context.session_id,
        "tenant": tenant,
        "arguments": arguments,
    }
    return canonical_json(call).encode()


def _shown(body: Body) -> str:
    text = body.text()
    if text is None:
        return body.placeholder()
    return f"{text}\n\n[The answer is longer; it was read up to here.]" if body.cut else text


def _excerpt(body: Body) -> str:
    text = body.text()
    if text is None or not text.strip():
        return ""
    cut = clean_text(text).strip()
    shown = fit_to_show(cut[: 2 * MAX_EXCERPT])[:MAX_EXCERPT]
    return f" Its answer:\n{shown}{' …' if len(cut) > MAX_EXCERPT else ''}"


def _error(output: str) -> ToolOutcome:
    return ToolOutcome(output=output, is_error=True)


def _timeout(output: str) -> ToolOutcome:
    return ToolOutcome(output=output, is_error=True, status=CallStatus.TIMEOUT)
