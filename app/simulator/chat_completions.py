"""The Chat Completions mode: reads requests, and writes streams and JSON answers as bytes."""

import time
from dataclasses import replace
from functools import lru_cache
from typing import Any, assert_never

import msgspec

from app.simulator.chat_deltas import ANSWER_ID, StreamText, deltas, message_of
from app.simulator.chat_rules import chat_problems
from app.simulator.mode import RequestView
from app.simulator.reply import LAST_CHUNK, Ending, Repeat, Reply, chunk, head, whole_reply
from app.simulator.script import ConnectionFault, ConnectionFaultKind, ErrorText, HttpFault, Script, StreamFault, StreamFaultKind

_DONE = b"data: [DONE]\n\n"
_GARBAGE = b'data: {"id": "chatcmpl-broken", "choices": [{"index": 0, "del\n\n'
_KEEP_ALIVE = b": keep-alive\n\n"
_STREAM_HEADERS = (("cache-control", "no-cache"),)
_STREAM_TYPE = "text/event-stream; charset=utf-8"
_BYTES_PER_TOKEN = 4

_ERRORS = {
    400: ("invalid_request_error", "invalid_request"),
    401: ("invalid_request_error", "invalid_api_key"),
    402: ("insufficient_quota", "insufficient_credits"),
    403: ("permission_error", "unsupported_country_region_territory"),
    404: ("invalid_request_error", "model_not_found"),
    413: ("invalid_request_error", "request_too_large"),
    429: ("requests", "rate_limit_exceeded"),
}


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
        return whole_reply(status, msgspec.json.encode(_error_object(status, error)))

    def reply(self, script: Script, view: RequestView) -> Reply:
        """See ApiMode."""
        match script.fault:
            case None:
                return _stream_reply(script, view, None) if view.stream else _json_reply(script, view, None)
            case StreamFault() as fault:
                return _stream_reply(script, view, fault) if view.stream else _json_reply(script, view, fault)
            case HttpFault() as fault:
                body = msgspec.json.encode(_error_object(fault.status, fault.error)) if fault.body is None else fault.body.encode()
                reply = whole_reply(fault.status, body, content_type=fault.content_type, headers=fault.headers, is_fault=True)
                return replace(reply, head_s=script.headers_s)
            case ConnectionFault() as fault:
                ending = Ending.CLOSE if fault.kind is ConnectionFaultKind.HANGUP else Ending.HOLD
                return Reply(status=None, head=b"", ending=ending, is_fault=True)
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


def _error_object(status: int, error: ErrorText) -> dict[str, Any]:
    kind, code = _ERRORS.get(status, ("server_error", "server_error"))
    message = error.message or f"The simulator was told to answer with an error (status {status})."
    return {"error": {"message": message, "type": error.type or kind, "param": None, "code": error.code or code}}


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


def _stream_reply(script: Script, view: RequestView, fault: StreamFault | None) -> Reply:
    spoken = _delta_chunks(_only_content(script), view.model)
    text = StreamText(view.model, int(time.time()))
    chunks = (chunk(text.opening(has_calls=bool(script.calls))), *spoken)
    usage = [text.usage(_usage(script, view, len(spoken)))] if view.include_usage else []
    kind = None if fault is None else fault.kind
    finish = [] if kind is StreamFaultKind.NO_FINISH else [text.finish(_finish_reason(script))]
    done = [] if kind is StreamFaultKind.NO_DONE else [_DONE]
    tail = b"".join(map(chunk, [*finish, *usage, *done])) + LAST_CHUNK
    start = head(200, _STREAM_TYPE, _STREAM_HEADERS, length=None)
    reply = Reply(status=200, head=start, head_s=script.headers_s, is_fault=fault is not None)
    if fault is None:
        return _timed(reply, script, chunks, tail)
    chunks, tail = _bend(fault, chunks, tail)
    return _timed(_bent_ending(reply, fault), script, chunks, tail)


def _bend(fault: StreamFault, chunks: tuple[bytes, ...], tail: bytes) -> tuple[tuple[bytes, ...], bytes]:
    """Return the chunks and the tail that the fault leaves; `after` 0 leaves not even the opening chunk."""
    shown = chunks[: fault.after + 1] if fault.after else ()
    rest = chunks[len(shown) :]
    match fault.kind:
        case StreamFaultKind.STALL | StreamFaultKind.COMMENTS | StreamFaultKind.EMPTY_DELTAS:
            return shown, b""
        case StreamFaultKind.CUT:
            return shown, LAST_CHUNK
        case StreamFaultKind.DROP | StreamFaultKind.RESET:
            broken = rest[0] if rest else tail
            return shown, broken[: len(broken) // 2]
        case StreamFaultKind.GARBAGE:
            return (*shown, chunk(_GARBAGE), *rest), tail
        case StreamFaultKind.ERROR:
            error = msgspec.json.encode(_error_object(500, fault.error))
            return shown, chunk(b"data: " + error + b"\n\n") + LAST_CHUNK
        case StreamFaultKind.NO_DONE | StreamFaultKind.NO_FINISH | StreamFaultKind.EMPTY:
            return chunks, tail
        case _:
            assert_never(fault.kind)


def _bent_ending(reply: Reply, fault: StreamFault) -> Reply:
    """Say what the connection does once the bytes of a faulty stream are out."""
    match fault.kind:
        case StreamFaultKind.STALL:
            return replace(reply, ending=Ending.HOLD)
        case StreamFaultKind.COMMENTS:
            return replace(reply, ending=Ending.HOLD, repeat=Repeat(data=chunk(_KEEP_ALIVE), every_s=fault.every_s))
        case StreamFaultKind.EMPTY_DELTAS:
            empty = StreamText("simulator", 0).delta(b'{"content":""}')
            return replace(reply, ending=Ending.HOLD, repeat=Repeat(data=chunk(empty), every_s=fault.every_s))
        case StreamFaultKind.DROP:
            return replace(reply, ending=Ending.CLOSE)
        case StreamFaultKind.RESET:
            return replace(reply, ending=Ending.RESET)
        case _:
            return reply


def _only_content(script: Script) -> Script:
    """Drop what does not change the deltas, so that scripts of other pace share their bytes."""
    return replace(script, usage=None, headers_s=0.0, first_s=0.0, pace_s=0.0, fault=None, fault_times=None, strict=False, picky=False)


def _timed(reply: Reply, script: Script, chunks: tuple[bytes, ...], tail: bytes = b"") -> Reply:
    """Put chunks on the time line: opening with the first token, tail with the last one."""
    if not script.pace_s:
        return replace(reply, pieces=(b"".join(chunks) + tail,), gaps_s=(script.first_s,))
    paced = [b"".join(chunks[:2]), *chunks[2:]]
    paced[-1] += tail
    return replace(reply, pieces=tuple(paced), gaps_s=(script.first_s, *(script.pace_s,) * (len(paced) - 1)))


def _json_reply(script: Script, view: RequestView, fault: StreamFault | None) -> Reply:
    shown = len(deltas(script))
    finish = None if fault is not None and fault.kind is StreamFaultKind.NO_FINISH else _finish_reason(script)
    completion = {
        "id": ANSWER_ID,
        "object": "chat.completion",
        "created": int(time.time()),
        "model": view.model,
        "choices": [{"index": 0, "message": message_of(script), "finish_reason": finish}],
        "usage": _usage(script, view, shown),
    }
    body = msgspec.json.encode(completion)
    taken_s = script.headers_s + script.first_s + script.pace_s * max(0, shown - 1)
    if fault is not None:
        return replace(_faulty_json(fault, body), head_s=taken_s)
    return replace(whole_reply(200, body), head_s=taken_s)


def _faulty_json(fault: StreamFault, body: bytes) -> Reply:
    half = body[: len(body) // 2]
    whole = whole_reply(200, body, is_fault=True)
    match fault.kind:
        case StreamFaultKind.STALL | StreamFaultKind.COMMENTS | StreamFaultKind.EMPTY_DELTAS:
            return replace(whole, pieces=(half,), ending=Ending.HOLD)
        case StreamFaultKind.CUT | StreamFaultKind.GARBAGE:
            return whole_reply(200, half, is_fault=True)
        case StreamFaultKind.DROP | StreamFaultKind.RESET:
            return replace(_bent_ending(whole, fault), pieces=(half,))
        case StreamFaultKind.ERROR:
            return whole_reply(200, msgspec.json.encode(_error_object(500, fault.error)), is_fault=True)
        case StreamFaultKind.NO_DONE | StreamFaultKind.NO_FINISH | StreamFaultKind.EMPTY:
            return whole
        case _:
            assert_never(fault.kind)
