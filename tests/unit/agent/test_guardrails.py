"""Tool guardrails: what is warned of, what is blocked, when the turn ends, and what is remembered."""

import json
from collections.abc import Sequence
from dataclasses import dataclass, field

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from app.agent.guardrails import (
    MAX_INVALID_REPLIES,
    Answered,
    Blocked,
    Halt,
    Verdict,
    Warn,
    after_calls,
    after_invalid,
    before_calls,
    closing_text,
    signature_of,
)
from app.domain.guardrails import (
    MAX_HISTORY,
    MAX_TRACKED,
    GuardrailCode,
    GuardrailState,
    GuardrailThresholds,
    HardStopAfter,
    ToolTraits,
    WarnAfter,
    digest_of,
)
from app.domain.messages import ToolCall

TRAITS = {
    "read_file": ToolTraits(read_only=True),
    "search_files": ToolTraits(read_only=True),
    "kanban_show": ToolTraits(read_only=True, polling=True),
    "work_status": ToolTraits(polling=True),
}
DEFAULTS = GuardrailThresholds()
EXACT = GuardrailCode.REPEATED_EXACT_FAILURE_WARNING
EXACT_BLOCK = GuardrailCode.REPEATED_EXACT_FAILURE_BLOCK
TOOL = GuardrailCode.SAME_TOOL_FAILURE_WARNING
TOOL_HALT = GuardrailCode.SAME_TOOL_FAILURE_HALT
IDLE = GuardrailCode.IDEMPOTENT_NO_PROGRESS_WARNING
IDLE_BLOCK = GuardrailCode.IDEMPOTENT_NO_PROGRESS_BLOCK
CYCLE = GuardrailCode.TOOL_CALL_CYCLE_WARNING
CYCLE_HALT = GuardrailCode.TOOL_CALL_CYCLE_HALT


def call(name: str, arguments: str = "{}") -> ToolCall:
    return ToolCall("c", name, arguments)


@dataclass(frozen=True, slots=True)
class Step:
    """A call and what its tool would answer."""

    name: str
    arguments: str = "{}"
    output: str = "the same"
    fails: bool = False


A = Step("browser_click")
B = Step("terminal")
C = Step("write_file")
READ = Step("read_file")
BAD = Step("terminal", fails=True)


@dataclass(slots=True)
class Turn:
    """Plays replies of calls as the loop does; keeps the state as it is stored, in JSON."""

    hard_stop: bool = False
    thresholds: GuardrailThresholds = DEFAULTS
    stored: bytes = b"{}"
    ran: int = 0
    halted: Halt | None = None
    found: list[Warn | Blocked | Halt | None] = field(default_factory=list)

    def reply(self, *steps: Step) -> Verdict:
        state = msgspec.json.decode(self.stored, type=GuardrailState)
        calls = [call(step.name, step.arguments) for step in steps]
        blocked = before_calls(state, calls, self.thresholds, hard_stop=self.hard_stop)
        answered = [
            Answered(call=asked, result=digest_of(blocked[index].message), is_error=True, blocked=True)
            if index in blocked
            else Answered(call=asked, result=digest_of(step.output), is_error=step.fails)
            for index, (step, asked) in enumerate(zip(steps, calls, strict=True))
        ]
        self.ran += len(steps) - len(blocked)
        state, verdict = after_calls(state, answered, TRAITS, self.thresholds, hard_stop=self.hard_stop)
        self.stored = msgspec.json.encode(state)
        self.halted = self.halted or verdict.halt
        for index in range(len(steps)):
            halt = verdict.halt if verdict.halt is not None and verdict.halt.index == index else None
            self.found.append(halt or blocked.get(index) or verdict.warnings.get(index))
        return verdict

    def play(self, steps: Sequence[Step]) -> list[tuple[GuardrailCode, int] | None]:
        """One call per reply, until the turn is stopped; code and count of what was found for each."""
        for step in steps:
            if self.halted is None:
                self.reply(step)
        return [None if one is None else (one.code, one.count) for one in self.found]


def cycles(warn: int, stop: int) -> GuardrailThresholds:
    return GuardrailThresholds(warn_after=WarnAfter(cycle=warn), hard_stop_after=HardStopAfter(cycle=stop))


def answers(step: Step, *outputs: str) -> list[Step]:
    return [Step(step.name, step.arguments, output) for output in outputs]


def test_the_thresholds_are_those_of_the_table() -> None:
    assert msgspec.to_builtins(DEFAULTS) == {
        "hard_stop": None,
        "warn_after": {"exact_failure": 2, "same_tool_failure": 3, "idempotent_no_progress": 2, "cycle": 3},
        "hard_stop_after": {"exact_failure": 5, "same_tool_failure": 8, "idempotent_no_progress": 5, "cycle": 5},
    }


@pytest.mark.parametrize(
    ("text", "where"),
    [
        ('{"warn_after":{"cycle":1}}', "$.warn_after.cycle"),
        ('{"hard_stop_after":{"cycle":21}}', "$.hard_stop_after.cycle"),
        ('{"warn_after":{"exact_failure":0}}', "$.warn_after.exact_failure"),
        ('{"warn_after":{"cycles":3}}', "$.warn_after"),
        ('{"hard":true}', "hard"),
    ],
    ids=str,
)
def test_settings_out_of_range_or_unknown_are_refused(text: str, where: str) -> None:
    with pytest.raises(msgspec.ValidationError) as refused:
        msgspec.json.decode(text, type=GuardrailThresholds)
    assert where in str(refused.value)


def test_thresholds_may_be_given_in_part() -> None:
    read = msgspec.json.decode('{"warn_after":{"cycle":2},"hard_stop_after":{"cycle":3}}', type=GuardrailThresholds)
    assert read == cycles(2, 3)


@pytest.mark.parametrize(
    ("setting", "background", "stops"), [(None, True, True), (None, False, False), (True, False, True), (False, True, False)]
)
def test_only_background_turns_are_stopped_unless_the_tenant_says_otherwise(setting: bool | None, background: bool, stops: bool) -> None:
    assert GuardrailThresholds(hard_stop=setting).stops(background=background) is stops


def test_seven_failures_of_one_call_are_warned_of_from_the_second_on_and_never_stopped() -> None:
    turn = Turn()
    assert turn.play([BAD] * 7) == [None, *((EXACT, count) for count in range(2, 8))]
    assert turn.ran == 7


def test_the_sixth_call_is_blocked_after_five_failures_and_insisting_on_it_ends_the_turn() -> None:
    turn = Turn(hard_stop=True)
    warned = [(EXACT, count) for count in range(2, 6)]
    assert turn.play([BAD] * 20) == [None, *warned, (EXACT_BLOCK, 5), (EXACT_BLOCK, 5), (TOOL_HALT, 8)]
    assert turn.ran == 5


def test_a_failing_tool_is_warned_of_after_three_and_ends_the_turn_after_eight_whatever_its_arguments() -> None:
    steps = [Step("terminal", f'{{"n":{number}}}', fails=True) for number in range(20)]
    turn = Turn(hard_stop=True)
    assert turn.play(steps) == [None, None, *((TOOL, count) for count in range(3, 8)), (TOOL_HALT, 8)]
    assert Turn().play(steps)[7:9] == [(TOOL, 8), (TOOL, 9)]


def test_success_ends_the_count_of_the_call_and_of_its_tool() -> None:
    other = Step("terminal", '{"n":1}', fails=True)
    found = Turn().play([BAD, B, BAD, B, other, other, B, other])
    assert found == [None, None, None, None, None, (EXACT, 2), None, (EXACT, 3)], "B is another call of the same tool than `other`"


def test_a_call_that_does_not_fail_leaves_other_tools_counts_alone() -> None:
    steps = [Step("terminal", f'{{"n":{number}}}', fails=True) for number in range(3)]
    assert Turn().play([steps[0], A, steps[1], C, steps[2]])[-1] == (TOOL, 3)


def test_the_same_result_of_a_read_only_call_is_warned_of_and_its_sixth_call_blocked() -> None:
    turn = Turn(hard_stop=True)
    assert turn.play([READ] * 6) == [None, *((IDLE, count) for count in range(2, 6)), (IDLE_BLOCK, 5)]
    assert turn.ran == 5
    assert Turn().play([READ] * 7)[-1] == (IDLE, 7)


def test_a_new_result_and_a_failure_begin_the_count_anew() -> None:
    broken = Step("read_file", fails=True)
    steps = [*answers(READ, "1", "1", "2", "2"), broken, *answers(READ, "2", "2")]
    assert Turn(hard_stop=True).play(steps) == [None, (IDLE, 2), None, (IDLE, 2), None, None, (IDLE, 2)]


@pytest.mark.parametrize("name", ["kanban_show", "work_status", "terminal", "of_the_client"])
def test_polling_and_what_is_not_read_only_may_repeat_itself(name: str) -> None:
    turn = Turn(hard_stop=True)
    assert turn.play([Step(name)] * 30) == [None] * 30
    assert turn.ran == 30


@pytest.mark.parametrize("steps", [[A, B], [A, B, C], [A, B, C, READ], [A, B, C, READ, Step("patch")], [A, A, B]], ids=len)
def test_a_cycle_is_warned_of_after_three_rounds_and_ends_the_turn_after_five(steps: list[Step]) -> None:
    turn = Turn(hard_stop=True, thresholds=msgspec.structs.replace(DEFAULTS, warn_after=WarnAfter(idempotent_no_progress=100)))
    found = turn.play(steps * 9)
    period = len(steps)
    assert found[: 3 * period - 1] == [None] * (3 * period - 1)
    assert found[3 * period - 1] == (CYCLE, 3)
    assert set(found[3 * period : -1]) == {(CYCLE, 3), (CYCLE, 4)}
    assert found[5 * period - 1 :] == [(CYCLE_HALT, 5)]


def test_without_hard_stop_a_cycle_is_only_warned_of() -> None:
    found = Turn().play([A, B] * 20)
    assert found[5:10] == [(CYCLE, 3), (CYCLE, 3), (CYCLE, 4), (CYCLE, 4), (CYCLE, 5)]
    assert found[-1] == (CYCLE, 12), "what the history holds"


def test_a_cycle_of_six_calls_is_not_looked_for() -> None:
    steps = [Step("terminal", f'{{"n":{number}}}') for number in range(6)]
    assert Turn(hard_stop=True).play(steps * 6) == [None] * 36


def test_the_message_names_the_path() -> None:
    turn = Turn()
    steps = [Step("read_file", output=str(number)) if number % 2 == 0 else A for number in range(6)]
    turn.play(steps)
    last = turn.found[-1]
    assert last is not None
    assert last.code is CYCLE
    assert "read_file -> browser_click" in last.message


def test_thresholds_of_cycles_can_be_set() -> None:
    found = Turn(hard_stop=True, thresholds=cycles(2, 3)).play([A, B] * 9)
    assert found == [None, None, None, (CYCLE, 2), (CYCLE, 2), (CYCLE_HALT, 3)]


@pytest.mark.parametrize(
    "steps",
    [
        pytest.param([A, B, A, B, C, A, B], id="a call between"),
        pytest.param([A] * 12, id="one call is no cycle"),
        pytest.param([A, B, B, A, A, B], id="no order"),
        pytest.param([Step("terminal", f'{{"command":"{number}"}}') for number in range(30)], id="30 different calls"),
        pytest.param([Step("read_file", f'{{"path":"{number}"}}') for number in range(30)], id="30 files with the same content"),
    ],
)
def test_what_is_no_loop_is_left_alone(steps: list[Step]) -> None:
    assert Turn(hard_stop=True).play(steps) == [None] * len(steps)


def test_two_failing_calls_in_turn_are_warned_of_as_failures() -> None:
    found = Turn().play([Step("terminal", fails=True), Step("patch", fails=True)] * 3)
    assert found == [None, None, (EXACT, 2), (EXACT, 2), (EXACT, 3), (EXACT, 3)]


def test_of_one_calls_warnings_the_first_in_order_is_given() -> None:
    late = GuardrailThresholds(warn_after=WarnAfter(exact_failure=6, same_tool_failure=4))
    failing = [Step("terminal", fails=True), Step("patch", fails=True)]
    found = Turn(thresholds=late).play(failing * 7)
    assert found[1::2] == [None, None, (CYCLE, 3), (TOOL, 4), (TOOL, 5), (EXACT, 6), (EXACT, 7)]
    idle = Turn(thresholds=GuardrailThresholds(warn_after=WarnAfter(idempotent_no_progress=4))).play([READ, A] * 4)
    assert idle[4:] == [None, (CYCLE, 3), (IDLE, 4), (CYCLE, 4)]


def test_a_halt_beats_a_failure_warning() -> None:
    failing = [Step("terminal", fails=True), Step("patch", fails=True)]
    turn = Turn(hard_stop=True)
    assert turn.play(failing * 9)[-2:] == [(EXACT, 5), (CYCLE_HALT, 5)]
    assert turn.found[-1] is turn.halted


def test_an_alternating_loop_with_the_same_results_is_warned_of_then_stopped() -> None:
    turn = Turn(hard_stop=True)
    found = turn.play([A, B] * 9)
    assert (found[5], found[9], len(found)) == ((CYCLE, 3), (CYCLE_HALT, 5), 10)


def test_a_loop_of_reads_ends_as_early() -> None:
    found = Turn(hard_stop=True).play([READ, Step("search_files")] * 9)
    assert found == [None, None, *((IDLE, count) for count in (2, 2, 3, 3, 4, 4, 5)), (CYCLE_HALT, 5)]


def test_a_status_whose_result_changes_is_not_even_warned_of() -> None:
    for name in ("read_file", "work_status", "terminal"):
        assert Turn(hard_stop=True).play([Step(name, output=f"{percent}%") for percent in range(10, 110, 10)]) == [None] * 10


def test_a_loop_with_new_results_is_warned_of_and_not_stopped() -> None:
    turn = Turn(hard_stop=True)
    found = turn.play([Step(("read_file", "terminal")[number % 2], output=str(number)) for number in range(40)])
    assert found[:5] == [None] * 5
    assert {one[0] for one in found[5:] if one is not None} == {CYCLE}
    assert (turn.halted, turn.ran) == (None, 40)


def test_results_that_go_round_more_slowly_than_the_calls_end_the_turn_all_the_same() -> None:
    round_of_four = [*answers(A, "1"), *answers(B, "1"), *answers(A, "2"), *answers(B, "2")]
    found = Turn(hard_stop=True).play(round_of_four * 9)
    assert (found[-1], len(found)) == ((CYCLE_HALT, 5), 20)


def test_one_call_whose_result_comes_and_goes_is_no_cycle() -> None:
    assert Turn(hard_stop=True).play(answers(A, "on", "off") * 12) == [None] * 24


@pytest.mark.parametrize("name", ["kanban_show", "work_status"])
def test_a_cycle_that_polls_is_never_stopped(name: str) -> None:
    turn = Turn(hard_stop=True)
    turn.play([Step(name), B] * 20)
    assert (turn.halted, turn.ran) == (None, 40)


def test_the_count_belongs_to_the_turn() -> None:
    first, second = Turn(hard_stop=True), Turn(hard_stop=True)
    assert first.play([A, B, A, B]) + second.play([A, B]) == [None] * 6
    assert first.play([A, B])[-1] == (CYCLE, 3), "and nothing but a new turn clears it: no messages are looked at"


def test_calls_of_one_reply_count_in_their_order() -> None:
    turn = Turn(hard_stop=True)
    verdict = turn.reply(A, B, A, B, A, B, A, B, A, B, A, B)
    assert {index: one.count for index, one in verdict.warnings.items()} == {5: 3, 6: 3, 7: 4, 8: 4}
    assert verdict.halt is not None
    assert (verdict.halt.index, verdict.halt.code) == (9, CYCLE_HALT)


def test_one_calls_fault_does_not_fall_on_its_siblings() -> None:
    turn = Turn(hard_stop=True)
    turn.reply(BAD, READ)
    verdict = turn.reply(Step("search_files"), BAD, Step("read_file", output="new"))
    assert {index: one.code for index, one in verdict.warnings.items()} == {1: EXACT}


def test_only_the_call_itself_is_blocked() -> None:
    turn = Turn(hard_stop=True)
    turn.play([BAD] * 5)
    state = msgspec.json.decode(turn.stored, type=GuardrailState)
    calls = [call("terminal", '{"n":1}'), call("terminal"), call("patch")]
    assert set(before_calls(state, calls, DEFAULTS, hard_stop=True)) == {1}
    assert before_calls(state, calls, DEFAULTS, hard_stop=False) == {}


@pytest.mark.parametrize(("step", "code"), [(BAD, EXACT_BLOCK), (READ, IDLE_BLOCK)], ids=["failing", "no progress"])
def test_a_blocked_call_is_answered_with_error_and_guardrail(step: Step, code: GuardrailCode) -> None:
    turn = Turn(hard_stop=True)
    turn.play([step] * 6)
    last = turn.found[-1]
    assert isinstance(last, Blocked)
    body = json.loads(last.message)
    assert body["guardrail"] == {"code": code.value, "count": 5}
    assert body["error"].startswith(f"Not run: this call of {step.name} ")


def test_notes_stand_in_brackets_with_code_and_count() -> None:
    turn = Turn(hard_stop=True)
    turn.play([BAD] * 8)
    warned, halted = turn.found[1], turn.halted
    assert isinstance(warned, Warn)
    assert halted is not None
    assert warned.message.startswith("[Tool loop warning: repeated_exact_failure_warning; count=2; ")
    assert halted.message.startswith("[Tool loop stopped: same_tool_failure_halt; count=8; ")
    assert warned.message.endswith("]")
    assert halted.message.endswith("]")


@pytest.mark.parametrize(
    ("steps", "reason"),
    [
        ([BAD], "calls of terminal failed or were blocked 8 times without a success in between."),
        ([A, B], "the calls browser_click -> terminal went round 5 times with the same results."),
    ],
    ids=["failures", "cycle"],
)
def test_a_stopped_turn_answers_why(steps: list[Step], reason: str) -> None:
    turn = Turn(hard_stop=True)
    turn.play(steps * 20)
    assert turn.halted is not None
    text = closing_text(turn.halted)
    assert text.startswith(f"I stopped here: {reason}")


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ('{"a":1,"b":[2]}', '{ "b": [2],\n "a": 1 }'),
        ('{"city":"杭州"}', '{"city":"\\u676d\\u5dde"}'),
        ("{not json", "{not json"),
        ("[" * 100_000, "[" * 100_000),
    ],
    ids=["order and blanks", "escapes", "no JSON", "too deep"],
)
def test_calls_that_ask_for_the_same_have_one_signature(one: str, other: str) -> None:
    assert signature_of(call("lookup", one)) == signature_of(call("lookup", other))


@pytest.mark.parametrize(
    ("one", "other"),
    [
        (call("lookup", '{"a":1}'), call("lookup", '{"a":"1"}')),
        (call("lookup", "{a"), call("lookup", "{b")),
        (call("lookup"), call("look_up")),
        (call("n" * 80 + "1"), call("n" * 80 + "2")),
    ],
    ids=["value", "no JSON", "tool", "end of a long name"],
)
def test_calls_that_differ_have_different_signatures(one: ToolCall, other: ToolCall) -> None:
    assert signature_of(one) != signature_of(other)


def test_long_results_that_differ_only_in_the_middle_differ() -> None:
    ends = "x" * 100_000
    assert digest_of(f"{ends}1{ends}") != digest_of(f"{ends}2{ends}")
    assert len(digest_of("\ud800")) == len(digest_of(""))


def test_three_replies_of_invalid_calls_running_are_too_many() -> None:
    state, stops = GuardrailState(), []
    for all_invalid in (True, True, False, True, True, True):
        state, stop = after_invalid(state, all_invalid=all_invalid)
        stops.append(stop)
    assert stops == [False] * 5 + [True]
    assert state.invalid_replies == MAX_INVALID_REPLIES


def test_a_turn_without_calls_stores_nothing() -> None:
    assert msgspec.json.encode(GuardrailState()) == b"{}"


def test_the_call_not_seen_for_the_longest_is_forgotten_first() -> None:
    others = [Step("read_file", f'{{"n":{number}}}') for number in range(MAX_TRACKED - 1)]
    assert Turn().play([READ, *others, READ])[-1] == (IDLE, 2)
    assert Turn().play([READ, *others, others[0], Step("search_files"), READ])[-1] is None


def test_the_state_is_bounded_for_any_number_of_calls_and_settings_that_nobody_checked() -> None:
    turn = Turn(thresholds=cycles(1_000_000, 1_000_000))
    turn.reply(*(Step(f"tool_{number}", fails=True) for number in range(MAX_HISTORY + 20)))
    state = msgspec.json.decode(turn.stored, type=GuardrailState)
    assert (len(state.history), len(state.streaks), len(state.failures)) == (MAX_HISTORY, MAX_TRACKED, MAX_TRACKED)
    assert len(turn.stored) < 10_000
    turn = Turn()
    turn.reply(*(Step("tool_of_usual_name", f'{{"n":{number}}}', fails=True) for number in range(90)))
    assert len(turn.stored) < 4_000


NAMES = st.one_of(st.sampled_from([*TRAITS, "terminal"]), st.text(max_size=300).map(lambda text: text * 3), st.just("\ud800\x00[evil]"))
ANSWERED = st.builds(
    Answered,
    call=st.builds(ToolCall, st.just("c"), NAMES, st.one_of(st.sampled_from(["{}", '{"a":1}']), st.text(max_size=20))),
    result=st.sampled_from(["a", "b"]).map(digest_of),
    is_error=st.booleans(),
    blocked=st.booleans(),
)
THRESHOLDS = st.sampled_from([DEFAULTS, cycles(2, 20), cycles(1_000_000, 2)])


@given(replies=st.lists(st.lists(ANSWERED, max_size=30), max_size=8), thresholds=THRESHOLDS, hard_stop=st.booleans())
def test_whatever_is_called_the_state_stays_small_and_comes_back_as_it_was(
    replies: list[list[Answered]], thresholds: GuardrailThresholds, hard_stop: bool
) -> None:
    state = GuardrailState()
    for answered in replies:
        state, verdict = after_calls(state, answered, TRAITS, thresholds, hard_stop=hard_stop)
        assert hard_stop or verdict.halt is None
        assert verdict.halt is None or verdict.halt.index not in verdict.warnings
        assert set(verdict.warnings) <= {index for index, one in enumerate(answered) if not one.blocked}
    assert len(state.history) <= MAX_HISTORY
    assert len(state.streaks) <= MAX_TRACKED
    assert len(state.failures) <= MAX_TRACKED
    assert all(len(past.signature) <= 64 + 1 + 16 for past in state.history)
    stored = msgspec.json.encode(state)
    assert b"\\u0000" not in stored
    assert msgspec.json.decode(stored, type=GuardrailState) == state


@given(answered=st.lists(ANSWERED, max_size=40), cut=st.integers(0, 40))
def test_a_reply_in_parts_is_judged_like_the_whole(answered: list[Answered], cut: int) -> None:
    whole, verdict = after_calls(GuardrailState(), answered, TRAITS, DEFAULTS, hard_stop=True)
    state, first = after_calls(GuardrailState(), answered[:cut], TRAITS, DEFAULTS, hard_stop=True)
    state, second = after_calls(state, answered[cut:], TRAITS, DEFAULTS, hard_stop=True)
    assert state == whole
    assert first.warnings | {cut + index: one for index, one in second.warnings.items()} == verdict.warnings


@given(names=st.lists(st.sampled_from([*TRAITS, "terminal"]), min_size=36, max_size=36), data=st.data())
def test_whatever_fails_a_turn_of_failures_alone_is_stopped(names: list[str], data: st.DataObject) -> None:
    turn = Turn(hard_stop=True)
    turn.play([Step(name, data.draw(st.sampled_from(["{}", '{"a":1}', '{"a":2}'])), fails=True) for name in names])
    assert turn.halted is not None, "five tools with seven failures each are 35"


@given(names=st.lists(st.sampled_from([*TRAITS, "terminal"]), max_size=60))
def test_results_that_never_repeat_stop_nothing(names: list[str]) -> None:
    turn = Turn(hard_stop=True)
    turn.play([Step(name, output=str(number)) for number, name in enumerate(names)])
    assert (turn.halted, turn.ran) == (None, len(names))
