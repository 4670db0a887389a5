"""The Chat Completions mode: reads requests, and writes streams and JSON answers as bytes."""

import time
from functools import lru_cache
from typing import Any, assert_never

import msgspec

from app.simulator.chat_deltas import ANSWER_ID, StreamText, deltas, message_of
from app.simulator.chat_rules import chat_problems
from app.simulator.mode import RequestView
from app.simulator.openai_errors import error_object
from app.simulator.playback import SpokenBody, SpokenStream, fault_reply, only_content, stream_fault, stream_reply, whole_answer
from app.simulator.reply import Reply, chunk, whole_reply
from app.simulator.script import ConnectionFault, ErrorText, HttpFault, Script, StreamFault, StreamFaultKind

_DONE = b"data: [DONE]\n\n"
_BYTES_PER_TOKEN = 4


class ChatCompletions:
    """`POST /v1/chat/completions`; the methods are those of the ApiMode protocol."""

    path = "/chat/completions"

    def read(self, body: dict[str, Any], size_bytes: int) -> RequestView | None:
        """See ApiMode."""
        messages = body.get("messages")
        if not isinstance(messages, list):
            return None
        newest = max((at for at, message in enumerate(messages) if _has_role(message, "user")), default=-1)
        options = body.get("stream_options")
        return RequestView(
            model=body["model"] if isinstance(body.get("model"), str) else "",
            user_text=_text_of(messages[newest].get("content")) if newest >= 0 else "",
            rounds_done=sum(1 for message in messages[newest + 1 :] if _has_role(message, "assistant") and message.get("tool_calls")),
            offers_tools=bool(body.get("tools")) and body.get("tool_choice") != "none",
            stream=body.get("stream") is True,
            include_usage=isinstance(options, dict) and options.get("include_usage") is True,
            prompt_tokens=max(1, size_bytes // _BYTES_PER_TOKEN),
        )

    def problems(self, body: dict[str, Any], *, picky: bool) -> list[str]:
        """See ApiMode."""
        return chat_problems(body, picky=picky)

    def error(self, status: int, error: ErrorText) -> Reply:
        """See ApiMode."""
        return whole_reply(status, msgspec.json.encode(error_object(status, error)))

    def reply(self, script: Script, view: RequestView) -> Reply:
        """See ApiMode."""
        match script.fault:
            case None | StreamFault():
                return (
                    stream_reply(script, _spoken_stream(script, view)) if view.stream else whole_answer(script, _spoken_body(script, view))
                )
            case HttpFault() as fault:
                return fault_reply(script, fault, msgspec.json.encode(error_object(fault.status, fault.error)))
            case ConnectionFault() as fault:
                return fault_reply(script, fault, b"")
            case _:
                assert_never(script.fault)


def _has_role(message: object, role: str) -> bool:
    return isinstance(message, dict) and message.get("role") == role


def _text_of(content: object) -> str:
    if isinstance(content, str):
        return content
    if not isinstance(content, list):
        return ""
    texts = (part.get("text") for part in content if isinstance(part, dict) and part.get("type") == "text")
    return "\n".join(text for text in texts if isinstance(text, str))


def _finish_reason(script: Script) -> str:
    return script.finish or ("tool_calls" if script.calls else "stop")


def _usage(script: Script, view: RequestView, shown: int) -> dict[str, Any]:
    given, made = script.usage or (view.prompt_tokens, shown)
    return {
        "prompt_tokens": given,
        "completion_tokens": made,
        "total_tokens": given + made,
        "completion_tokens_details": {"reasoning_tokens": script.reasoning_tokens},
    }


@lru_cache(maxsize=64)
def _delta_chunks(script: Script, model: str) -> tuple[bytes, ...]:
    """Prepare the HTTP chunks of all deltas: the same for every request that gets this script."""
    text = StreamText(model, int(time.time()))
    return tuple(chunk(text.delta(delta)) for delta in deltas(script))


def _spoken_stream(script: Script, view: RequestView) -> SpokenStream:
    tokens = _delta_chunks(only_content(script), view.model)
    text = StreamText(view.model, int(time.time()))
    usage = [text.usage(_usage(script, view, len(tokens)))] if view.include_usage else []
    kind = stream_fault(script)
    finish = [] if kind is StreamFaultKind.NO_FINISH else [text.finish(_finish_reason(script))]
    done = [] if kind is StreamFaultKind.NO_DONE else [_DONE]
    return SpokenStream(
        opening=chunk(text.opening(has_calls=bool(script.calls))),
        tokens=tokens,
        closing=b"".join(map(chunk, [*finish, *usage, *done])),
        empty=chunk(text.delta(b'{"content":""}')),
        error=chunk(b"data: " + _fault_error(script) + b"\n\n"),
    )


def _spoken_body(script: Script, view: RequestView) -> SpokenBody:
    shown = len(deltas(script))
    finish = None if stream_fault(script) is StreamFaultKind.NO_FINISH else _finish_reason(script)
    completion = {
        "id": ANSWER_ID,
        "object": "chat.completion",
        "created": int(time.time()),
        "model": view.model,
        "choices": [{"index": 0, "message": message_of(script), "finish_reason": finish}],
        "usage": _usage(script, view, shown),
    }
    return SpokenBody(body=msgspec.json.encode(completion), tokens=shown, error=_fault_error(script))


def _fault_error(script: Script) -> bytes:
    error = script.fault.error if isinstance(script.fault, StreamFault) else ErrorText()
    return msgspec.json.encode(error_object(500, error))
