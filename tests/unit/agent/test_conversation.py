"""What one turn knows of its conversation: its size, and what is kept of it."""

from app.agent.conversation import Conversation
from app.context import tokens
from app.domain.compaction import CompactionReason, CompactionResult, ContextMark, ContextState, Fruitless, ResultClip, Room, Thresholds
from app.domain.model import FinishReason, ModelReply, Usage
from app.domain.openings import Kept
from tests.fakes.scripted_model import PRIMARY
from tests.unit.context.rows import said, stored, user

ROOM = Room(8_000, 800)
ROWS = stored([user("u" * 4_000), said("a" * 4_000), user("n" * 400)])


def conversation(kept: Kept | None = None, *, prompt: str = "Be kind.") -> Conversation:
    return Conversation(ROWS, kept or Kept(), system_prompt=prompt, room=ROOM, tools_bytes=400)


def reply(tokens_in: int, tokens_out: int = 10) -> ModelReply:
    return ModelReply(
        attempt=1,
        route=PRIMARY,
        text="x",
        reasoning="",
        tool_calls=(),
        bad_arguments={},
        finish=FinishReason.STOP,
        usage=Usage(input_tokens=tokens_in, output_tokens=tokens_out),
        cost_usd=None,
        window=8_000,
    )


def gone(*seqs: int, summary: str | None = "so far", reason: CompactionReason = CompactionReason.GATEWAY) -> CompactionResult:
    return CompactionResult(
        reason=reason, archived_seqs=seqs, summary=summary, clips=(ResultClip(2, 240),), tokens_before=9, tokens_after=9
    )


def test_what_the_provider_counted_is_the_size_from_then_on() -> None:
    talk = conversation()
    estimated = talk.plain_size()
    assert talk.size() == estimated
    talk.count_reply(reply(2 * estimated), estimated=estimated, up_to_seq=4, thresholds=Thresholds())
    assert talk.size() == 2 * estimated + 10
    state = talk.changed()
    assert state is not None
    assert state.mark is not None
    assert (state.mark.ratio, state.mark.up_to_seq, state.mark.window) == (2.0, 4, 8_000)
    assert talk.changed() is None, "it is stored once"
    again = conversation(Kept(context=state))
    assert again.size() == 2 * estimated + 10
    assert not again.needs_calibration() or state.mark.tokens < 4_096


def test_another_prompt_or_tools_are_estimated_anew() -> None:
    talk = conversation()
    talk.count_reply(reply(5_000), estimated=talk.plain_size(), up_to_seq=4, thresholds=Thresholds())
    changed = conversation(Kept(context=talk.state), prompt="p" * 4_000)
    assert changed.size() > changed.plain_size() > 0
    assert changed.state.mark is not None
    assert changed.state.mark.tokens == 0


def test_a_compaction_takes_rows_out_and_keeps_the_calibration() -> None:
    talk = conversation(Kept(summary="old", memory="tea"))
    talk.count_reply(reply(2 * talk.plain_size()), estimated=talk.plain_size(), up_to_seq=4, thresholds=Thresholds())
    before = talk.size()
    talk.apply(gone(1, 2), memory="tea and cake")
    assert [row.seq for row in talk.rows] == [3]
    assert (talk.summary, talk.memory) == ("so far", "tea and cake")
    assert "so far" in talk.block
    assert "tea and cake" in talk.system
    assert talk.size() < before
    assert talk.state.mark == ContextMark(tokens=0, up_to_seq=0, window=8_000, ratio=2.0)
    assert talk.state.clips == (ResultClip(2, 240),)
    assert talk.state.fruitless == Fruitless(count=1)
    talk.apply(gone(3, summary=None), memory=None)
    assert talk.summary == "so far", "a trim leaves the summary"


def test_the_latch_opens_below_the_threshold_that_was_to_be_reached() -> None:
    talk = conversation(Kept(context=ContextState(fruitless=Fruitless(count=2, preflight=True))))
    talk.count_reply(reply(4_500), estimated=0, up_to_seq=4, thresholds=Thresholds())
    assert talk.state.fruitless.latched
    talk.count_reply(reply(3_900), estimated=0, up_to_seq=4, thresholds=Thresholds())
    assert talk.state.fruitless == Fruitless()
    talk.fruitless(CompactionReason.GATEWAY)
    talk.fruitless(CompactionReason.MANUAL)
    assert talk.state.fruitless == Fruitless(count=1)
    talk.count_reply(reply(4_500), estimated=0, up_to_seq=4, thresholds=Thresholds())
    assert talk.state.fruitless == Fruitless()


def test_where_nothing_is_counted_the_estimate_keeps_the_latch() -> None:
    talk = conversation(Kept(context=ContextState(fruitless=Fruitless(count=2))))
    size = talk.size()
    above, below = Thresholds(gateway=(size - 1) / ROOM.window), Thresholds(gateway=(size + 1) / ROOM.window)
    talk.count_reply(reply(0), estimated=0, up_to_seq=4, thresholds=above)
    assert talk.state.fruitless.latched
    talk.count_reply(reply(0), estimated=0, up_to_seq=4, thresholds=below)
    assert not talk.state.fruitless.latched


def test_a_refusal_makes_the_window_smaller_and_the_estimate_larger() -> None:
    talk = conversation()
    assert talk.refused(4_000) == Room(4_000, 800)
    assert talk.refused(None) == Room(8_000, 800)
    assert talk.size() >= ROOM.most
    assert talk.sizing(Room(4_000, 800), Thresholds()).view.window == 8_000, "rows go on being shown for the session's own window"


def test_what_is_forgotten_counts_no_more() -> None:
    talk = conversation()
    talk.count_reply(reply(7_000), estimated=0, up_to_seq=4, thresholds=Thresholds())
    talk.forget()
    assert talk.size() == tokens.estimate("Be kind.", (), tools_bytes=400) + sum(
        tokens.estimate("", (row.message,), tools_bytes=0) for row in ROWS
    )
