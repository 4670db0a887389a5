"""What all API modes share: a script's pace and faults, applied to an answer that a mode has written."""

from dataclasses import dataclass, replace
from typing import assert_never

from app.simulator.reply import LAST_CHUNK, Ending, Repeat, Reply, chunk, head, whole_reply
from app.simulator.script import ConnectionFault, ConnectionFaultKind, HttpFault, Script, StreamFault, StreamFaultKind

_GARBAGE = chunk(b'data: {"id": "sim-broken", "choices": [{"index": 0, "del\n\n')
_KEEP_ALIVE = chunk(b": keep-alive\n\n")
_STREAM_HEADERS = (("cache-control", "no-cache"),)
_STREAM_TYPE = "text/event-stream; charset=utf-8"


@dataclass(frozen=True, slots=True, kw_only=True)
class SpokenStream:
    """A streamed answer in HTTP chunks: `opening`, one chunk per token, `closing` (any number of chunks).

    `empty` is an event that says nothing, `error` one that ends the stream with an error.
    """

    opening: bytes
    tokens: tuple[bytes, ...]
    closing: bytes
    empty: bytes
    error: bytes


@dataclass(frozen=True, slots=True, kw_only=True)
class SpokenBody:
    """An answer that is not streamed, `tokens` long, and the body that stands for an error in its place."""

    body: bytes
    tokens: int
    error: bytes


def stream_fault(script: Script) -> StreamFaultKind | None:
    """Say how the stream of a script breaks; None for one that does not, or that does not begin."""
    return script.fault.kind if isinstance(script.fault, StreamFault) else None


def only_content(script: Script) -> Script:
    """Drop what does not change the tokens, so that scripts of other pace share their bytes."""
    return replace(script, usage=None, headers_s=0.0, first_s=0.0, pace_s=0.0, fault=None, fault_times=None, strict=False, picky=False)


def fault_reply(script: Script, fault: HttpFault | ConnectionFault, error: bytes) -> Reply:
    """Answer with something that is no completion; `error` is the provider's own error object."""
    match fault:
        case HttpFault():
            body = error if fault.body is None else fault.body.encode()
            reply = whole_reply(fault.status, body, content_type=fault.content_type, headers=fault.headers, is_fault=True)
            return replace(reply, head_s=script.headers_s)
        case ConnectionFault():
            ending = Ending.CLOSE if fault.kind is ConnectionFaultKind.HANGUP else Ending.HOLD
            return Reply(status=None, head=b"", ending=ending, is_fault=True)
        case _:
            assert_never(fault)


def stream_reply(script: Script, spoken: SpokenStream) -> Reply:
    """Put a stream on the time line, broken where the script says so."""
    fault = script.fault if isinstance(script.fault, StreamFault) else None
    chunks = (spoken.opening, *spoken.tokens)
    tail = spoken.closing + LAST_CHUNK
    start = head(200, _STREAM_TYPE, _STREAM_HEADERS, length=None)
    reply = Reply(status=200, head=start, head_s=script.headers_s, is_fault=fault is not None)
    if fault is None:
        return _timed(reply, script, chunks, tail)
    chunks, tail = _bend(fault, chunks, tail, spoken.error)
    return _timed(_bent_ending(reply, fault, spoken.empty), script, chunks, tail)


def whole_answer(script: Script, spoken: SpokenBody) -> Reply:
    """Send an answer whole, after the time that its stream would have taken."""
    taken_s = script.headers_s + script.first_s + script.pace_s * max(0, spoken.tokens - 1)
    reply = whole_reply(200, spoken.body)
    if isinstance(script.fault, StreamFault):
        reply = _bent_whole(script.fault, spoken)
    return replace(reply, head_s=taken_s)


def _bend(fault: StreamFault, chunks: tuple[bytes, ...], tail: bytes, error: bytes) -> tuple[tuple[bytes, ...], bytes]:
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
            return (*shown, _GARBAGE, *rest), tail
        case StreamFaultKind.ERROR:
            return shown, error + LAST_CHUNK
        case StreamFaultKind.NO_DONE | StreamFaultKind.NO_FINISH | StreamFaultKind.EMPTY:
            return chunks, tail
        case _:
            assert_never(fault.kind)


def _bent_ending(reply: Reply, fault: StreamFault, empty: bytes) -> Reply:
    """Say what the connection does once the bytes of a faulty answer are out."""
    match fault.kind:
        case StreamFaultKind.STALL:
            return replace(reply, ending=Ending.HOLD)
        case StreamFaultKind.COMMENTS:
            return replace(reply, ending=Ending.HOLD, repeat=Repeat(data=_KEEP_ALIVE, every_s=fault.every_s))
        case StreamFaultKind.EMPTY_DELTAS:
            return replace(reply, ending=Ending.HOLD, repeat=Repeat(data=empty, every_s=fault.every_s))
        case StreamFaultKind.DROP:
            return replace(reply, ending=Ending.CLOSE)
        case StreamFaultKind.RESET:
            return replace(reply, ending=Ending.RESET)
        case _:
            return reply


def _timed(reply: Reply, script: Script, chunks: tuple[bytes, ...], tail: bytes = b"") -> Reply:
    """Put chunks on the time line: opening with the first token, tail with the last one."""
    if not script.pace_s:
        return replace(reply, pieces=(b"".join(chunks) + tail,), gaps_s=(script.first_s,))
    paced = [b"".join(chunks[:2]), *chunks[2:]]
    paced[-1] += tail
    return replace(reply, pieces=tuple(paced), gaps_s=(script.first_s, *(script.pace_s,) * (len(paced) - 1)))


def _bent_whole(fault: StreamFault, spoken: SpokenBody) -> Reply:
    half = spoken.body[: len(spoken.body) // 2]
    whole = whole_reply(200, spoken.body, is_fault=True)
    match fault.kind:
        case StreamFaultKind.STALL | StreamFaultKind.COMMENTS | StreamFaultKind.EMPTY_DELTAS:
            return replace(whole, pieces=(half,), ending=Ending.HOLD)
        case StreamFaultKind.CUT | StreamFaultKind.GARBAGE:
            return whole_reply(200, half, is_fault=True)
        case StreamFaultKind.DROP:
            return replace(whole, pieces=(half,), ending=Ending.CLOSE)
        case StreamFaultKind.RESET:
            return replace(whole, pieces=(half,), ending=Ending.RESET)
        case StreamFaultKind.ERROR:
            return whole_reply(200, spoken.error, is_fault=True)
        case StreamFaultKind.NO_DONE | StreamFaultKind.NO_FINISH | StreamFaultKind.EMPTY:
            return whole
        case _:
            assert_never(fault.kind)
