"""What a model may say, for tests that draw it: answers, calls of every kind, cut replies, failures."""

import json

from hypothesis import strategies as st

from app.domain.errors import ContextOverflowError, ModelUnavailableError
from app.domain.messages import ToolCall
from app.domain.model import FailureReason, FinishReason, ModelReply
from tests.unit.agent.scenes import Said, cut, cut_call, says

TEXTS = st.sampled_from(["One. ", " two", "three\n", "é 🙂"])
USED = st.tuples(st.integers(0, 400), st.integers(0, 200))
FAILURES = [reason for reason in FailureReason if reason is not FailureReason.CONTEXT_OVERFLOW]


@st.composite
def asking(draw: st.DrawFn) -> ModelReply:
    """A reply with calls of any kind: known and invented tools, the same arguments again, some that cannot be read."""
    names = draw(st.lists(st.sampled_from(["lookup", "poll", "save", "invented", "no such tool"]), min_size=1, max_size=4))
    numbers = [draw(st.integers(0, 3)) for _ in names]
    calls = [ToolCall(f"call_{index}", name, json.dumps({"q": q})) for index, (name, q) in enumerate(zip(names, numbers, strict=True))]
    bad = {call.id: "cut off" for call in calls if draw(st.integers(0, 4)) == 0}
    readable = tuple(ToolCall(call.id, call.name, "{}") if call.id in bad else call for call in calls)
    text = draw(st.sampled_from(["", "Let me see."]))
    return says(text, *readable, used=draw(USED), bad=bad, cost_usd=draw(st.sampled_from([None, 0.0, 0.01])))


SAYING: st.SearchStrategy[Said] = st.one_of(
    asking(),
    asking(),
    st.builds(lambda text, used: cut(text, used=used), TEXTS, USED),
    st.builds(lambda text, used, grow: cut_call(text, used=used, may_grow=grow), st.just("Let me"), USED, st.booleans()),
    st.builds(lambda used: cut("", reasoning="hm", used=used), USED),
    st.builds(lambda text, used: says(text, used=used), TEXTS, USED),
    st.just(says("I will not.", finish=FinishReason.REFUSAL)),
    st.just(says("Bad", finish=FinishReason.CONTENT_FILTER)),
    st.builds(lambda reason: ModelUnavailableError(reason, "It failed."), st.sampled_from(FAILURES)),
    st.just(ContextOverflowError(FailureReason.CONTEXT_OVERFLOW, "Too long.")),
)
