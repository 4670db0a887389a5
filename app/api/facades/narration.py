"""A turn's frames as what an OpenAI client can be told: text, reasoning, whole messages, and one end.

Works on the frames that every follower gets, so a facade is one more follower and an ordinary turn pays nothing for it. Only what is
needed is decoded.
"""

from dataclasses import dataclass
from typing import TypeAlias

import msgspec

from app.domain.events import Problem
from app.domain.model import RouteRef, Usage


class CallView(msgspec.Struct, frozen=True):
    """A tool call as it stands in an event."""

    id: str
    function: dict[str, str]


@dataclass(frozen=True, slots=True)
class Text:
    """A piece of the message that is being said."""

    text: str


@dataclass(frozen=True, slots=True)
class Reasoning:
    """A piece of its reasoning."""

    text: str


@dataclass(frozen=True, slots=True)
class MessageDone:
    """The message is complete; ``calls`` are all its tool calls, whoever runs them."""

    text: str
    calls: tuple[CallView, ...]


@dataclass(frozen=True, slots=True)
class Ended:
    """The turn has ended; ``text`` is what was said of a message that never became complete."""

    event: "Terminal"
    state: str
    text: str


@dataclass(frozen=True, slots=True)
class Diverged:
    """Nothing can follow: the next attempt says something else than was shown, or (``pruned``) a long text is not kept any more."""

    pruned: bool = False


Piece: TypeAlias = Text | Reasoning | MessageDone | Ended | Diverged


class Terminal(msgspec.Struct, frozen=True):
    """What of a terminal event matters here."""

    reason: str
    output: str
    usage: Usage
    cost_usd: float | None
    route: RouteRef | None
    error: Problem | None = None


class _Delta(msgspec.Struct, frozen=True):
    attempt: int
    text: str


class _Reset(msgspec.Struct, frozen=True):
    attempt: int


class _Started(msgspec.Struct, frozen=True):
    route: RouteRef


class _Fallback(msgspec.Struct, frozen=True):
    to_route: RouteRef


class _View(msgspec.Struct, frozen=True):
    content: str
    tool_calls: tuple[CallView, ...] = ()
    reasoning: str | None = None
    content_truncated: bool = False


class _Completed(msgspec.Struct, frozen=True):
    route: RouteRef
    message: _View


_delta = msgspec.json.Decoder(_Delta).decode
_attempt = msgspec.json.Decoder(_Reset).decode
_started = msgspec.json.Decoder(_Started).decode
_fallback = msgspec.json.Decoder(_Fallback).decode
_completed = msgspec.json.Decoder(_Completed).decode
_terminal = msgspec.json.Decoder(Terminal).decode


class Narrator:
    """Reads frames in order. ``patient`` for an answer that is given as a whole: then text comes only when it is final."""

    def __init__(self, *, patient: bool) -> None:
        self._patient = patient
        self._said: list[str] = []
        self._thought: list[_Delta] = []
        self._owed: str | None = None
        """What the attempt after a reset still has to repeat of the text shown."""
        self._reset = False
        self._attempt = 0
        """The attempt whose text came last; ``_kept`` pieces of what was said are of earlier ones, and stand."""
        self._kept = 0
        self._voided = False
        """That attempt's text is void, and the next one's takes its place."""
        self.model: str | None = None
        """The model that is asked, or has answered last."""

    def feed(self, frames: bytes) -> list[Piece]:
        """What these frames tell; ``frames`` are whole ones."""
        pieces: list[Piece] = []
        for frame in frames.split(b"\n\n"):
            head, _, data = frame.partition(b"\ndata: ")
            self._take(head[head.find(b"event: ") + 7 :], data, pieces)
        return pieces

    def _take(self, name: bytes, data: bytes, pieces: list[Piece]) -> None:
        match name:
            case b"message.delta":
                self._say(_delta(data), pieces)
            case b"reasoning.delta":
                self._think(_delta(data), pieces)
            case b"attempt.reset":
                self._retract(_attempt(data).attempt)
            case b"message.completed":
                self._complete(_completed(data), pieces)
            case b"turn.started" | b"turn.resumed":
                self.model = _started(data).route.model
            case b"provider.fallback":
                self.model = _fallback(data).to_route.model
            case b"turn.completed" | b"turn.interrupted" | b"turn.failed":
                self._end(_terminal(data), name[5:].decode(), pieces)
            case _:
                pass

    def _say(self, delta: _Delta, pieces: list[Piece]) -> None:
        text = delta.text
        if delta.attempt != self._attempt:
            self._attempt = delta.attempt
            if not self._voided:
                self._kept = len(self._said)  # an answer that is given in parts: those before this one stand
            self._voided = False
        if self._owed:
            repeated, owed = text[: len(self._owed)], self._owed
            if not owed.startswith(repeated):
                pieces.append(Diverged())
                return
            self._owed, text = owed[len(repeated) :], text[len(repeated) :]
        if text:
            self._said.append(text)
            if not self._patient:
                pieces.append(Text(text))

    def _think(self, delta: _Delta, pieces: list[Piece]) -> None:
        if self._reset and not self._patient:
            return
        self._thought.append(delta)
        if not self._patient:
            pieces.append(Reasoning(delta.text))

    def _retract(self, attempt: int) -> None:
        self._reset = True
        if self._patient:
            self._thought = [delta for delta in self._thought if delta.attempt != attempt]
        if attempt > self._attempt:
            return  # it has shown no text
        self._voided = True
        if self._patient:
            del self._said[self._kept :]
        else:
            self._owed = "".join(self._said[self._kept :])

    def _complete(self, done: _Completed, pieces: list[Piece]) -> None:
        self.model = done.route.model
        said, whole = "".join(self._said), done.message.content
        if done.message.content_truncated:
            whole = said
        if done.message.content_truncated and len(said) <= len(done.message.content):
            pieces.append(Diverged(pruned=True))
        elif self._patient:
            self._give(pieces, self._thoughts or done.message.reasoning or "", whole)
        elif self._owed or (self._reset and not whole.startswith(said)):
            pieces.append(Diverged())
        elif len(whole) > len(said) and whole.startswith(said):
            pieces.append(Text(whole[len(said) :]))  # a text that no model streamed, such as the one at the end of a budget
        pieces.append(MessageDone(whole, done.message.tool_calls))
        self._forget()

    def _end(self, event: Terminal, state: str, pieces: list[Piece]) -> None:
        said = "".join(self._said)
        if self._patient:
            said = said or (event.output if state != "completed" else "")
            self._give(pieces, self._thoughts, said)
        pieces.append(Ended(event, state, said))
        self._forget()

    @property
    def _thoughts(self) -> str:
        return "".join(delta.text for delta in self._thought)

    def _give(self, pieces: list[Piece], reasoning: str, text: str) -> None:
        if reasoning:
            pieces.append(Reasoning(reasoning))
        if text:
            pieces.append(Text(text))

    def _forget(self) -> None:
        self._said.clear()
        self._thought.clear()
        self._owed, self._reset = None, False
        self._kept, self._voided = 0, False
