"""The conversation as one turn sees it: its rows, what the session keeps beside them, and how large the next request is."""

from collections.abc import Sequence

import msgspec

from app.context import compaction, tokens
from app.context.compaction import Sizing
from app.context.prompt import build_prompt
from app.context.render import View, render, row_tokens
from app.context.summary import block
from app.domain.compaction import CompactionReason, CompactionResult, ContextState, Room, Thresholds
from app.domain.messages import Message, StoredMessage
from app.domain.model import ModelReply
from app.domain.openings import Kept

_UNCALIBRATED_TOKENS = 4_096
"""A mark of fewer tokens says too little about how far estimates are off."""


class Conversation:
    """Mutable; owned by the run alone. ``rows`` are those that the model is shown, in order."""

    def __init__(self, rows: Sequence[StoredMessage], kept: Kept, *, system_prompt: str, room: Room, tools_bytes: int) -> None:
        self.rows = [row for row in rows if not row.archived]
        self.summary = kept.summary or ""
        self.memory = kept.memory
        self.room = room
        self._system_prompt = system_prompt
        self._tools_bytes = tools_bytes
        self.state = self._stored_state = kept.context
        mark = kept.context.mark
        if mark is not None and mark.tokens and mark.fixed != self._fixed():
            self.state = msgspec.structs.replace(kept.context, mark=compaction.calibration(mark))

    @property
    def system(self) -> str:
        """The system prompt with its snapshot of memory."""
        return build_prompt(self._system_prompt, self.memory)

    @property
    def block(self) -> str:
        """The summary as it follows the system prompt."""
        return block(self.summary)

    @property
    def view(self) -> View:
        """How rows are shown."""
        return View(self.room.window, self.state.clips)

    def messages(self) -> tuple[Message, ...]:
        """The valid history that the model is shown."""
        return render(self.rows, self.view)

    def size(self) -> int:
        """Tokens of the next request, calibrated."""
        return compaction.context_size(
            self.state.mark, self.rows, self.view, system=self.system, summary=self.block, tools_bytes=self._tools_bytes
        )

    def plain_size(self) -> int:
        """The same by plain estimate."""
        fixed = tokens.estimate(self.system + self.block, (), tools_bytes=self._tools_bytes)
        return fixed + sum(row_tokens(row, self.view) for row in self.rows)

    def _fixed(self) -> int:
        return tokens.estimate(self.system, (), tools_bytes=self._tools_bytes)

    def needs_calibration(self) -> bool:
        """Whether the next reply's usage is to be compared with the plain estimate of its request."""
        mark = self.state.mark
        return mark is None or mark.tokens < _UNCALIBRATED_TOKENS or mark.ratio == 1.0

    def count_reply(self, reply: ModelReply, *, estimated: int, up_to_seq: int, thresholds: Thresholds) -> None:
        """Take note of what the provider counted for a request and its reply, which becomes the row ``up_to_seq``.

        Where it counted nothing, the estimate says whether compactions help.
        """
        sent = reply.usage.input_tokens or self.size()
        mark = compaction.new_mark(
            reply.usage,
            estimated=estimated,
            up_to_seq=up_to_seq,
            window=reply.window or self.room.window,
            replayed=reply.replay is not None,
            previous=self.state.mark,
        )
        if mark is not None:
            mark = msgspec.structs.replace(mark, fixed=self._fixed())
        fruitless = compaction.fitted(self.state.fruitless, sent, self.room, thresholds)
        self.state = msgspec.structs.replace(self.state, mark=mark, fruitless=fruitless)

    def refused(self, window: int | None) -> Room:
        """Take note of a refusal as too long; returns the window that the request has to fit into."""
        room = Room(min(window or self.room.window, self.room.window), self.room.output_tokens)
        mark = compaction.after_overflow(self.state.mark, estimated=self.plain_size(), room=room)
        self.state = msgspec.structs.replace(self.state, mark=mark)
        return room

    def sizing(self, room: Room, thresholds: Thresholds) -> Sizing:
        """What the size of the compacted context depends on."""
        mark = self.state.mark
        return Sizing(
            room=room,
            thresholds=thresholds,
            view=self.view,
            ratio=compaction.ratio_of(mark),
            fixed_tokens=compaction.fixed_size(self.system, self._tools_bytes, mark),
        )

    def apply(self, result: CompactionResult, *, memory: str | None) -> None:
        """Rows leave, the summary and the snapshot of memory are replaced."""
        gone = frozenset(result.leaving_seqs)
        self.rows = [row for row in self.rows if row.seq not in gone]
        if result.summary is not None:
            self.summary = result.summary
        self.memory = memory
        fruitless = compaction.compacted(self.state.fruitless, result.reason)
        self.state = ContextState(mark=compaction.calibration(self.state.mark), clips=result.clips, fruitless=fruitless)

    def failed(self, now_ms: int) -> None:
        """No summary could be had."""
        self.state = msgspec.structs.replace(self.state, fruitless=compaction.failed(self.state.fruitless, now_ms))

    def fruitless(self, reason: CompactionReason) -> None:
        """A compaction was due and found nothing to take out."""
        self.state = msgspec.structs.replace(self.state, fruitless=compaction.compacted(self.state.fruitless, reason))

    def forget(self) -> None:
        """The turn's rows leave the context with its end: what was counted with them counts no more."""
        self.state = msgspec.structs.replace(self.state, mark=compaction.calibration(self.state.mark))

    def changed(self) -> ContextState | None:
        """The state to be stored, once after each change."""
        if self.state is self._stored_state:
            return None
        self._stored_state = self.state
        return self.state
