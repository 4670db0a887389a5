"""The Messages mode (Anthropic): reads requests, and writes streams and JSON answers as bytes."""

from functools import lru_cache
from typing import Any, assert_never

import msgspec

from app.simulator.messages_blocks import (
    EMPTY_DELTA,
    MESSAGE_ID,
    PING,
    STOP,
    block_events,
    content_of,
    end_event,
    ending_of,
    error_event,
    start_event,
)
from app.simulator.messages_rules import messages_problems
from app.simulator.mode import RequestView
from app.simulator.playback import SpokenBody, SpokenStream, fault_reply, only_content, stream_fault, stream_reply, whole_answer
from app.simulator.reply import Reply, chunk, whole_reply
from app.simulator.script import ConnectionFault, ErrorText, HttpFault, Script, StreamFault, StreamFaultKind

_BYTES_PER_TOKEN = 4

_ERRORS = {
    400: "invalid_request_error",
    401: "authentication_error",
    402: "billing_error",
    403: "permission_error",
    404: "not_found_error",
    405: "invalid_request_error",
    413: "request_too_large",
    429: "rate_limit_error",
    504: "timeout_error",
    529: "overloaded_error",
}
_STOP_REASONS = {"stop": "end_turn", "length": "max_tokens", "content_filter": "refusal", "tool_calls": "tool_use"}


class AnthropicMessages:
    """`POST /v1/messages`; the methods are those of the ApiMode protocol."""

    path = "/messages"

    def read(self, body: dict[str, Any], size_bytes: int) -> RequestView | None:
        """See ApiMode. A user message of nothing but tool results says nothing new."""
        messages = body.get("messages")
        if not isinstance(messages, list):
            return None
        newest = max((at for at, message in enumerate(messages) if _speaks(message)), default=-1)
        return RequestView(
            model=body["model"] if isinstance(body.get("model"), str) else "",
            user_text=_text_of(messages[newest].get("content")) if newest >= 0 else "",
            rounds_done=sum(1 for message in messages[newest + 1 :] if "tool_use" in _block_types(message)),
            offers_tools=bool(body.get("tools")) and not _forbids_tools(body.get("tool_choice")),
            stream=body.get("stream") is True,
            include_usage=True,
            prompt_tokens=max(1, size_bytes // _BYTES_PER_TOKEN),
        )

    def problems(self, body: dict[str, Any], *, picky: bool) -> list[str]:
        """See ApiMode."""
        return messages_problems(body, picky=picky)

    def error(self, status: int, error: ErrorText) -> Reply:
        """See ApiMode."""
        return whole_reply(status, _error_object(status, error))

    def reply(self, script: Script, view: RequestView) -> Reply:
        """See ApiMode."""
        match script.fault:
            case None | StreamFault():
                return (
                    stream_reply(script, _spoken_stream(script, view)) if view.stream else whole_answer(script, _spoken_body(script, view))
                )
            case HttpFault() as fault:
                return fault_reply(script, fault, _error_object(fault.status, fault.error))
            case ConnectionFault() as fault:
                return fault_reply(script, fault, b"")
            case _:
                assert_never(script.fault)


def _block_types(message: object) -> list[str]:
    content = message.get("content") if isinstance(message, dict) else None
    if not isinstance(content, list):
        return ["text"] if isinstance(content, str) else []
    return [str(block.get("type")) for block in content if isinstance(block, dict)]


def _speaks(message: object) -> bool:
    is_user = isinstance(message, dict) and message.get("role") == "user"
    return is_user and any(kind != "tool_result" for kind in _block_types(message))


def _text_of(content: object) -> str:
    if not isinstance(content, list):
        return content if isinstance(content, str) else ""
    texts = (block.get("text") for block in content if isinstance(block, dict) and block.get("type") == "text")
    return "\n".join(text for text in texts if isinstance(text, str))


def _forbids_tools(choice: object) -> bool:
    return isinstance(choice, dict) and choice.get("type") == "none"


def _error_object(status: int, error: ErrorText) -> bytes:
    """The protocol has a type and a message, and no code."""
    message = error.message or f"The simulator was told to answer with an error (status {status})."
    return msgspec.json.encode({"type": "error", "error": {"type": error.type or _ERRORS.get(status, "api_error"), "message": message}})


def _stop_reason(script: Script) -> str:
    if script.finish is not None:
        return _STOP_REASONS[script.finish]
    if script.calls:
        return "tool_use"
    return "end_turn" if script.refusal is None else "refusal"


def _usage(script: Script, view: RequestView, shown: int) -> dict[str, Any]:
    given, made = script.usage or (view.prompt_tokens, shown)
    return {
        "input_tokens": given,
        "cache_creation_input_tokens": 0,
        "cache_read_input_tokens": 0,
        "output_tokens": made,
        "output_tokens_details": {"thinking_tokens": script.reasoning_tokens},
    }


@lru_cache(maxsize=64)
def _token_chunks(script: Script, model: str) -> tuple[bytes, ...]:
    """Prepare the HTTP chunks of all tokens: the same for every request that gets this script."""
    return tuple(chunk(events) for events in block_events(script, model))


def _spoken_stream(script: Script, view: RequestView) -> SpokenStream:
    tokens = _token_chunks(only_content(script), view.model)
    usage = _usage(script, view, len(tokens))
    kind = stream_fault(script)
    end = (
        []
        if kind is StreamFaultKind.NO_FINISH
        else [end_event(ending_of(_stop_reason(script), script.refusal), {"output_tokens": usage["output_tokens"]})]
    )
    stop = [] if kind is StreamFaultKind.NO_DONE else [STOP]
    return SpokenStream(
        opening=chunk(start_event(view.model, {**usage, "output_tokens": 1}) + PING),
        tokens=tokens,
        closing=b"".join(map(chunk, [*end, *stop])),
        empty=chunk(EMPTY_DELTA),
        error=chunk(error_event(_fault_error(script))),
    )


def _spoken_body(script: Script, view: RequestView) -> SpokenBody:
    shown = len(_token_chunks(only_content(script), view.model))
    unfinished = stream_fault(script) is StreamFaultKind.NO_FINISH
    ending = {"stop_reason": None, "stop_sequence": None} if unfinished else ending_of(_stop_reason(script), script.refusal)
    message = {
        "id": MESSAGE_ID,
        "type": "message",
        "role": "assistant",
        "model": view.model,
        "content": content_of(script, view.model),
        **ending,
        "usage": _usage(script, view, shown),
    }
    return SpokenBody(body=msgspec.json.encode(message), tokens=shown, error=_fault_error(script))


def _fault_error(script: Script) -> bytes:
    return _error_object(500, script.fault.error if isinstance(script.fault, StreamFault) else ErrorText())
