import msgspec

from app.agent.batch import result_message
from app.agent.facts import Arrivals, Record, Show, tools_completed
from app.domain.events import MAX_EVENT_TEXT, AttemptFailedEvent, AttemptReset, ProviderFallback, ToolCompleted
from app.domain.ids import MessageId, TurnId
from app.domain.messages import Message, Role, StoredMessage, ToolCall
from app.domain.model import AttemptFailed, FailureReason, MessageDelta, ReasoningDelta, RouteRef, RouteUse
from app.domain.tools import FinishedCall, ToolOutcome
from app.domain.turns import MachineState
from tests.fakes.scripted_model import reply

TURN = TurnId("turn_1")
FIRST = RouteRef(provider="p1", model="m-test")
SECOND = RouteRef(provider="p2", model="m-test")


def failed(attempt: int, *, shown: bool = False, next_route: RouteRef | None = None, delay_s: float = 0.0) -> AttemptFailed:
    return AttemptFailed(
        attempt=attempt,
        route=FIRST,
        reason=FailureReason.STALE,
        status=None,
        message="The provider stopped sending.",
        text_shown=shown,
        next_route=next_route,
        delay_s=delay_s,
    )


def failed_event(attempt: int, next_route: RouteRef | None = None, delay_s: float = 0.0) -> AttemptFailedEvent:
    return AttemptFailedEvent(
        attempt=attempt,
        route=FIRST,
        reason=FailureReason.STALE,
        status=None,
        message="The provider stopped sending.",
        next_route=next_route,
        delay_s=delay_s,
    )


STATE = MachineState(iteration=2, attempts=3)


def test_deltas_that_arrived_together_stay_together() -> None:
    arrivals = Arrivals.of([ReasoningDelta(4, "hm"), MessageDelta(4, "a"), MessageDelta(4, "b")], STATE)
    shown = Show([ReasoningDelta(attempt=4, text="hm"), MessageDelta(attempt=4, text="a"), MessageDelta(attempt=4, text="b")])
    assert arrivals == Arrivals(facts=[shown], state=STATE, reply=None, open_route=None)


def test_nothing_is_no_fact() -> None:
    assert Arrivals.of([], STATE) == Arrivals(facts=[], state=STATE, reply=None, open_route=None)


def test_the_reply_is_handed_on_without_a_fact_of_its_own() -> None:
    end = reply("ab", attempt=4)
    assert Arrivals.of([MessageDelta(4, "b"), end], STATE) == Arrivals(
        facts=[Show([MessageDelta(attempt=4, text="b")])], state=STATE, reply=end, open_route=None
    )


def test_a_failed_attempt_without_text_is_recorded_without_a_reset() -> None:
    arrivals = Arrivals.of([failed(4, next_route=FIRST, delay_s=5.0)], STATE)
    state = msgspec.structs.replace(STATE, attempts=4, route=FIRST, routes=(RouteUse(route=FIRST, attempts=1, failed=1),))
    record = Record(events=(failed_event(4, FIRST, 5.0),), messages=(), state=state)
    assert arrivals == Arrivals(facts=[record], state=state, reply=None, open_route=None)


def test_shown_text_is_reset_before_the_fallback_is_announced() -> None:
    arrivals = Arrivals.of([failed(4, shown=True, next_route=SECOND)], STATE)
    (record,) = arrivals.facts
    assert isinstance(record, Record)
    assert record.events == (
        failed_event(4, SECOND),
        AttemptReset(attempt=4),
        ProviderFallback(from_route=FIRST, to_route=SECOND, reason=FailureReason.STALE),
    )
    assert not record.boundary


def test_the_last_failure_announces_no_fallback() -> None:
    (record,) = Arrivals.of([failed(4, shown=True)], STATE).facts
    assert isinstance(record, Record)
    assert record.events == (failed_event(4), AttemptReset(attempt=4))


def test_failures_stand_between_the_deltas_in_the_order_of_arrival() -> None:
    arrivals = Arrivals.of(
        [MessageDelta(4, "a"), failed(4, shown=True, next_route=FIRST), MessageDelta(5, "b"), failed(5, shown=True, next_route=SECOND)],
        STATE,
    )
    assert [type(fact) for fact in arrivals.facts] == [Show, Record, Show, Record]
    assert [fact.state.attempts for fact in arrivals.facts if isinstance(fact, Record)] == [4, 5]
    assert (arrivals.state.attempts, arrivals.state.route) == (5, FIRST)


def done(output: str, *, is_error: bool = False) -> FinishedCall:
    return FinishedCall(index=1, call=ToolCall("c2", "lookup", "{}"), outcome=ToolOutcome(output=output, is_error=is_error), duration_ms=7)


def stored(output: str) -> StoredMessage:
    message = result_message(done(output))
    return StoredMessage(id=MessageId("msg_1"), session_id=None, seq=9, turn_id=TURN, message=message, archived=False, created_at_ms=0)


def test_a_result_answers_its_call() -> None:
    assert result_message(done("no", is_error=True)) == Message(
        role=Role.TOOL, content="no", tool_call_id="c2", tool_name="lookup", is_error=True
    )


def test_the_event_of_a_long_result_is_cut_and_says_so_the_message_is_whole() -> None:
    long = "x" * (MAX_EVENT_TEXT + 1)
    assert result_message(done(long)).content == long
    (event,) = tools_completed(TURN, [done(long)], [stored(long)])
    assert event == ToolCompleted(
        tool_call_id="c2",
        name="lookup",
        output=long[:-1],
        is_error=False,
        duration_ms=7,
        output_truncated=True,
        output_url="/turns/turn_1/tool_results/c2?seq=9",
    )
    (short,) = tools_completed(TURN, [done(long[:-1])], [stored(long[:-1])])
    assert isinstance(short, ToolCompleted)
    assert (short.output_truncated, short.output_url) == (False, None)
