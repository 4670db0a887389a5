"""What the facades take.

Parameters that are harmless to ignore are left out here and so accepted; what is not harmless is refused with a clear error.
"""

from typing import Annotated, Any

from pydantic import BaseModel, ConfigDict, Field

from app.api.schemas import MAX_IMPORTED, Metadata, Name, Names
from app.domain.turns import OnDisconnect

MAX_TOOLS = 128
_Items = Annotated[list[dict[str, Any]], Field(max_length=MAX_IMPORTED)]
_Tools = Annotated[list[dict[str, Any]], Field(max_length=MAX_TOOLS)]
_Tokens = Annotated[int, Field(ge=1, le=10_000_000)]


class FacadeBody(BaseModel):
    """What both protocols have, and what is ours: clients send it as ``extra_body``."""

    model_config = ConfigDict(extra="ignore", strict=True, frozen=True)

    model: Annotated[str, Field(max_length=256)] | None = Field(
        None, description="A model of the chat chain; `default` (or none) asks the chain in its order."
    )
    stream: bool | None = None
    temperature: Annotated[float, Field(ge=0, le=2)] | None = None
    top_p: Annotated[float, Field(ge=0, le=1)] | None = None
    top_logprobs: int | None = None
    tools: _Tools | None = Field(None, description="Functions that the client runs.")
    tool_choice: str | dict[str, Any] | None = None
    parallel_tool_calls: bool | None = None
    metadata: Metadata | None = None
    session_id: Annotated[str, Field(max_length=64)] | None = Field(
        None, description="Ours: the call is a turn of this session. Also as header `X-Session-Id`."
    )
    toolsets: Names | None = Field(None, description="Ours: toolsets of the gateway for a call without a session. Default: none.")
    on_disconnect: Annotated[OnDisconnect, Field(strict=False)] = Field(
        OnDisconnect.CANCEL, description="Ours: when this request's connection goes away, interrupt the turn or let it go on."
    )
    max_iterations: Annotated[int, Field(ge=1, le=1_000)] | None = Field(None, description="Ours: as in a turn.")


class ChatCompletionCreate(FacadeBody):
    """OpenAI's chat completions request."""

    messages: Annotated[_Items, Field(min_length=1)]
    stream_options: dict[str, Any] | None = None
    stop: str | Annotated[list[str], Field(max_length=16)] | None = None
    max_tokens: _Tokens | None = None
    max_completion_tokens: _Tokens | None = None
    response_format: dict[str, Any] | None = None
    reasoning_effort: Name | None = None
    n: int | None = None
    logprobs: bool | None = None
    modalities: list[str] | None = None
    audio: dict[str, Any] | None = None
    functions: list[Any] | None = None
    function_call: Any = None
    web_search_options: Any = None


class ResponseCreate(FacadeBody):
    """OpenAI's responses request."""

    input: str | Annotated[_Items, Field(min_length=1)]
    instructions: str | None = None
    max_output_tokens: Annotated[int, Field(ge=16, le=10_000_000)] | None = None
    text: dict[str, Any] | None = None
    reasoning: dict[str, Any] | None = None
    background: bool | None = None
    conversation: str | dict[str, Any] | None = Field(None, description="One of our sessions: `sess_…`.")
    previous_response_id: Annotated[str, Field(max_length=64)] | None = Field(
        None, description="A response that belongs to a session: the call goes on in it."
    )
    prompt: Any = None


Stop = str | list[str] | None
