"""Model calls: what is asked of a model, what comes back, and what may go wrong.

``ModelChunk`` is the closed union that a :class:`app.ports.ModelClient` yields. Faults of providers are values of the closed enum
:class:`FailureReason`; one table (``providers/classify.py``) produces them and everything else only reads them.
"""

import enum
from typing import Any, ClassVar, Final, TypeAlias

import msgspec

from app.domain.messages import Message, Replay, ToolCall, ToolSpec


class ApiMode(enum.StrEnum):
    """The wire protocol of a provider."""

    CHAT_COMPLETIONS = "chat_completions"
    RESPONSES = "responses"
    ANTHROPIC_MESSAGES = "anthropic_messages"


class FinishReason(enum.StrEnum):
    """Why a model stopped, after the decoder judged the whole reply (content decides, not the label)."""

    STOP = "stop"
    TOOL_CALLS = "tool_calls"
    LENGTH = "length"
    CONTENT_FILTER = "content_filter"
    REFUSAL = "refusal"


class FailureReason(enum.StrEnum):
    """Closed list of what can be wrong with an attempt."""

    AUTH = "auth"
    BILLING = "billing"
    RATE_LIMIT = "rate_limit"
    FORBIDDEN = "forbidden"
    MODEL_NOT_FOUND = "model_not_found"
    CONTEXT_OVERFLOW = "context_overflow"
    PAYLOAD_TOO_LARGE = "payload_too_large"
    CONTENT_FILTERED = "content_filtered"
    INVALID_REQUEST = "invalid_request"
    OVERLOADED = "overloaded"
    SERVER_ERROR = "server_error"
    CONNECT_FAILED = "connect_failed"
    """No connection: refused, unresolved, TLS, or not within ``connect_timeout_s``."""
    CONNECTION_BROKEN = "connection_broken"
    """The connection died after the request was sent."""
    FIRST_TOKEN_TIMEOUT = "first_token_timeout"
    STALE = "stale"
    """No content for ``stale_timeout_s`` although some had come."""
    INCOMPLETE_STREAM = "incomplete_stream"
    """A clean end of the stream without its terminal marker."""
    INVALID_RESPONSE = "invalid_response"
    """Empty, or not what the protocol allows."""
    UNSUPPORTED = "unsupported"
    """The target cannot do what the request needs (assistant prefill, images, tools, …); another one may."""
    INVALID_REPLAY = "invalid_replay"
    """Signed or encrypted reasoning that was sent back is not accepted (any more): the request may be sent again without it."""
    BAD_UNICODE = "bad_unicode"
    """Text that is no proper Unicode: the request may be cleaned and sent again."""


class Usage(msgspec.Struct, frozen=True, kw_only=True):
    """Tokens as the provider reported them. ``output_tokens`` includes the reasoning ones.

    ``input_tokens`` includes those read from a cache (``cached_input_tokens``) and those written to one (``cache_write_tokens``).
    """

    input_tokens: int = 0
    output_tokens: int = 0
    cached_input_tokens: int = 0
    cache_write_tokens: int = 0
    reasoning_tokens: int = 0

    def __add__(self, other: "Usage") -> "Usage":
        return Usage(
            input_tokens=self.input_tokens + other.input_tokens,
            output_tokens=self.output_tokens + other.output_tokens,
            cached_input_tokens=self.cached_input_tokens + other.cached_input_tokens,
            cache_write_tokens=self.cache_write_tokens + other.cache_write_tokens,
            reasoning_tokens=self.reasoning_tokens + other.reasoning_tokens,
        )


CHARS_PER_TOKEN = 4
"""Of text whose tokens nobody counted."""


def estimated_usage(input_tokens: int, shown_chars: int) -> Usage:
    """What an attempt used that broke off, or was interrupted, before the provider told: it is paid for all the same."""
    return Usage(input_tokens=input_tokens, output_tokens=-(-shown_chars // CHARS_PER_TOKEN))


class RouteRef(msgspec.Struct, frozen=True, kw_only=True):
    """Which route of a chain: shown to clients, so it holds no address and no credential."""

    provider: str
    model: str
    api_mode: ApiMode = ApiMode.CHAT_COMPLETIONS


class RouteUse(msgspec.Struct, frozen=True, kw_only=True):
    """What a turn used of one route. ``attempts`` are those made of it, ``failed`` of them failed; their use is counted too."""

    route: RouteRef
    attempts: int = 0
    failed: int = 0
    usage: Usage = Usage()
    cost_usd: float | None = None


class ModelOptions(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """What a caller may ask of the model beside the conversation; ``None`` leaves it to the provider or the route.

    ``doublings``: the output limit is that many times doubled, up to the route's largest; ``output_cap``: it is this at most.
    ``tool_choice`` is ``auto``, ``none``, ``required``, or ``tool:NAME``. ``response_format`` is OpenAI's (``json_object`` or
    ``json_schema``). A route is not asked for what it has no word for: see :mod:`app.domain.capabilities`.
    """

    max_output_tokens: int | None = None
    temperature: float | None = None
    top_p: float | None = None
    stop: tuple[str, ...] = ()
    tool_choice: str | None = None
    parallel_tool_calls: bool | None = None
    response_format: dict[str, Any] | None = None
    reasoning_effort: str | None = None
    doublings: int = 0
    output_cap: int | None = None


NO_OPTIONS: Final = ModelOptions()


class ModelRequest(msgspec.Struct, frozen=True, kw_only=True):
    """One model call. The bytes sent depend on these values only, so the same request is always sent the same way.

    ``first_attempt`` is the number of the call's first attempt; attempts are numbered through a whole turn, from 1.
    ``input_tokens`` is an estimate of what the model will have to read, tools and system prompt included. ``summary`` is what stands for
    the older part of the conversation; it follows the system prompt, so that what stands before it stays the same. Not ``replays``: the
    provider did not want its reasoning back, so it is asked for none to send back.
    """

    system: str
    messages: tuple[Message, ...]
    tools: tuple[ToolSpec, ...]
    first_attempt: int
    input_tokens: int = 0
    options: ModelOptions = NO_OPTIONS
    summary: str = ""
    replays: bool = True

    @property
    def whole_system(self) -> str:
        """System prompt and summary as one text."""
        return "\n\n".join(part for part in (self.system, self.summary) if part)


class MessageDelta(msgspec.Struct, frozen=True):
    """A piece of an attempt's visible text: a chunk of a model's stream and, unchanged, an event; void when its attempt is reset."""

    event_type: ClassVar[str] = "message.delta"
    attempt: int
    text: str


class ReasoningDelta(msgspec.Struct, frozen=True):
    """A piece of an attempt's reasoning, as :class:`MessageDelta`."""

    event_type: ClassVar[str] = "reasoning.delta"
    attempt: int
    text: str


Delta: TypeAlias = MessageDelta | ReasoningDelta


class AttemptAccepted(msgspec.Struct, frozen=True):
    """The provider took the attempt's request: whatever becomes of it, it is paid for. Shown to nobody."""

    attempt: int
    route: RouteRef


class AttemptFailed(msgspec.Struct, frozen=True, kw_only=True):
    """An attempt failed. ``text_shown``: some of its deltas were yielded and are now void. ``message`` is safe to show.

    ``next_route`` is the route that is tried next (the same one for a repeat), ``None`` when no attempt follows or the choice is still
    open; ``delay_s`` is the wait before it. ``usage`` and ``cost_usd`` are what it used all the same: as the provider said, else, where it
    was accepted, by estimate.
    """

    attempt: int
    route: RouteRef
    reason: FailureReason
    status: int | None
    message: str
    text_shown: bool
    next_route: RouteRef | None
    delay_s: float
    usage: Usage = Usage()
    cost_usd: float | None = None


class Throttled(msgspec.Struct, frozen=True, kw_only=True):
    """A limit of the route makes the call wait ``delay_s`` seconds (``skipped`` false) or leaves the route out (``skipped`` true).

    No attempt was made. ``limit`` names what is used up: ``rpm``, ``tpm``, or ``cooldown`` for a wait that the provider asked for.
    """

    route: RouteRef
    limit: str
    delay_s: float
    skipped: bool


class ModelReply(msgspec.Struct, frozen=True, kw_only=True):
    """The complete reply of the attempt that succeeded: always the last chunk of a stream, exactly once.

    Tool calls have unique non-empty ids and arguments that are a JSON object, except where ``bad_arguments`` names the call id
    with the reason they could not be read (their ``arguments`` are then ``{}``). Usage and cost are the
    attempt's own.
    ``replay`` is what the same target wants back with the message, unchanged.
    """

    attempt: int
    route: RouteRef
    text: str
    reasoning: str
    tool_calls: tuple[ToolCall, ...]
    bad_arguments: dict[str, str]
    finish: FinishReason
    usage: Usage
    cost_usd: float | None
    replay: Replay | None = None
    calls_cut: bool = False
    """It was cut in the middle of its tool calls, which are left out."""
    window: int = 0
    """Tokens of the context window of the route that answered; 0 when unknown."""
    may_grow: bool = False
    """The route allows a larger output than this attempt was given."""


ModelChunk: TypeAlias = Delta | AttemptAccepted | AttemptFailed | Throttled | ModelReply
