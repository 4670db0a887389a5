import json
from typing import Any

import pytest

from app.domain.errors import ModelUnavailableError
from app.domain.ids import MessageId, SessionId, TenantId, TurnId
from app.domain.messages import Message, Role
from app.domain.model import AttemptFailed, FailureReason, RouteUse
from app.domain.tenants import Purpose
from app.domain.tools import ToolContext, ToolOutcome
from app.tools.builtin.recollection import MAX_SUMMARY, MAX_TOLD
from app.tools.builtin.session_search import session_search_tool
from app.tools.execution import ToolExecutor
from app.tools.registry import ToolRegistry
from tests.fakes.auxiliary import ScriptedClients, auxiliary_of
from tests.fakes.clock import HandClock
from tests.fakes.scripted_model import PRIMARY, USAGE, Script, ScriptedModel, reply
from tests.fakes.search import InMemorySearch
from tests.fakes.sessions import InMemorySessions
from tests.fakes.tooling.builders import call_of
from tests.unit.tools.builtin.test_memory import session_of

TENANT = TenantId("ten_1")
OWN = SessionId("sess_" + "0" * 26)
EARLIER = SessionId("sess_" + "1" * 26)
FOREIGN = SessionId("sess_" + "2" * 26)


class Stage:
    """The tool in a session of ada, who has an earlier one."""

    def __init__(self, model: ScriptedModel | None = None) -> None:
        self.sessions = InMemorySessions(HandClock())
        self.clients = ScriptedClients(model)
        tool = session_search_tool(InMemorySearch(self.sessions), auxiliary_of(self.clients))
        self.registry = ToolRegistry([tool], ToolExecutor(10))

    async def fill(self) -> None:
        for session_id, tenant in ((OWN, TENANT), (EARLIER, TENANT), (FOREIGN, TenantId("ten_2"))):
            await self.sessions.create(session_of(session_id, tenant, "ada"))

    def say(self, session_id: SessionId, *texts: str, archived: bool = False) -> None:
        for text in texts:
            place = len(self.sessions.messages[session_id])
            message = Message(role=Role.ASSISTANT if place % 2 else Role.USER, content=text)
            self.sessions.append(session_id, MessageId(f"msg_{place}"), message, archived=archived)

    async def call(self, session: str | None = OWN, **arguments: Any) -> ToolOutcome:
        context = ToolContext(
            tenant_id=TENANT,
            session_id=None if session is None else SessionId(session),
            turn_id=TurnId("turn_1"),
            enabled=frozenset({"session_search"}),
        )
        return await self.registry.call(call_of("session_search", json.dumps(arguments)), context)

    async def done(self, **arguments: Any) -> dict[str, Any]:
        outcome = await self.call(**arguments)
        assert not outcome.is_error, outcome.output
        result: dict[str, Any] = json.loads(outcome.output)
        return result


@pytest.fixture
async def stage() -> Stage:
    stage = Stage()
    await stage.fill()
    return stage


async def test_a_query_finds_messages_with_their_neighbours(stage: Stage) -> None:
    stage.say(EARLIER, "hello", "hi", "we chose Postgres", "good")
    result = await stage.done(query="postgres")
    (hit,) = result["hits"]
    assert result["mode"] == "discover"
    assert (hit["session_id"], hit["seq"], hit["hits_in_session"], hit["messages_in_session"]) == (EARLIER, 3, 1, 4)
    assert [(message["seq"], message["role"], message["text"]) for message in hit["messages"]] == [
        (1, "user", "hello"),
        (2, "assistant", "hi"),
        (3, "user", "we chose Postgres"),
        (4, "assistant", "good"),
    ]
    assert hit["started_at"].endswith("+00:00")


async def test_a_long_message_is_shown_about_the_word_and_its_neighbours_in_short(stage: Stage) -> None:
    stage.say(EARLIER, "n" * 5_000, f"{'a ' * 2_000}Needle{' z' * 2_000}")
    (hit,) = (await stage.done(query="needle"))["hits"]
    neighbour, found = hit["messages"]
    assert neighbour["text"] == "n" * 300 + " …"
    assert "Needle" in found["text"]
    assert found["text"].startswith("… a")
    assert found["text"].endswith("z …")
    assert len(found["text"]) <= 1_204


async def test_the_own_session_is_named_and_only_its_archived_part_is_found(stage: Stage) -> None:
    stage.say(OWN, "an old whale", archived=True)
    stage.say(OWN, "ok", "a new whale")
    (hit,) = (await stage.done(query="whale"))["hits"]
    assert (hit["session_id"], hit["seq"], hit["this_conversation"]) == (OWN, 1, True)


async def test_a_search_in_one_session_gives_all_its_hits_up_to_the_limit(stage: Stage) -> None:
    stage.say(EARLIER, *(f"whale {number}" for number in range(20)))
    found = await stage.done(query="whale", session_id=EARLIER, limit=3)
    assert [hit["seq"] for hit in found["hits"]] == [20, 19, 18]
    assert len((await stage.done(query="whale", session_id=EARLIER))["hits"]) == 5


async def test_nothing_found_is_an_empty_list(stage: Stage) -> None:
    assert (await stage.done(query="unicorn"))["hits"] == []


async def test_a_session_is_read_at_both_ends(stage: Stage) -> None:
    stage.say(EARLIER, *(f"m{number}" for number in range(1, 51)))
    result = await stage.done(session_id=EARLIER)
    assert result["mode"] == "read"
    assert [message["seq"] for message in result["messages"]] == [*range(1, 21), *range(41, 51)]
    assert result["messages_in_session"] == 50
    assert "around" in result["note"]


async def test_a_short_session_is_read_whole(stage: Stage) -> None:
    stage.say(EARLIER, "m1", "m2")
    result = await stage.done(session_id=EARLIER)
    assert [message["text"] for message in result["messages"]] == ["m1", "m2"]
    assert "note" not in result


async def test_a_session_is_read_around_a_place_whose_message_is_shown_at_length(stage: Stage) -> None:
    stage.say(EARLIER, *(str(number) * 2_000 for number in range(1, 51)))
    result = await stage.done(session_id=EARLIER, around=25)
    assert [message["seq"] for message in result["messages"]] == list(range(15, 36))
    assert [len(message["text"]) for message in result["messages"]] == [802] * 10 + [4_000] + [802] * 10


async def test_without_arguments_the_newest_sessions_are_listed(stage: Stage) -> None:
    stage.say(EARLIER, "Plan the trip", "Sure")
    result = await stage.done()
    assert result["mode"] == "recent"
    assert [(each["session_id"], each["begins"][0]["text"]) for each in result["sessions"]] == [(EARLIER, "Plan the trip")]


REFUSED: dict[str, tuple[dict[str, Any], str]] = {
    "no id": ({"session_id": "'; DROP TABLE"}, "not the id"),
    "unknown": ({"session_id": "sess_" + "9" * 26}, "no such conversation"),
    "of another tenant": ({"session_id": FOREIGN}, "no such conversation"),
    "of another tenant, at a place": ({"session_id": FOREIGN, "around": 1}, "no such conversation"),
    "a place alone": ({"around": 3}, "session_id"),
    "a query without words": ({"query": "?!"}, "no words"),
    "too high a limit": ({"query": "x", "limit": 11}, "limit"),
}


@pytest.mark.parametrize(("arguments", "told"), REFUSED.values(), ids=REFUSED)
async def test_what_cannot_be_searched_says_why(stage: Stage, arguments: dict[str, Any], told: str) -> None:
    stage.say(FOREIGN, "secret")
    outcome = await stage.call(**arguments)
    assert outcome.is_error
    assert told in outcome.output
    assert "secret" not in outcome.output


async def test_a_call_without_a_session_is_refused(stage: Stage) -> None:
    assert (await stage.call(None)).is_error


async def test_the_output_is_bounded(stage: Stage) -> None:
    stage.say(EARLIER, *("whale " + "🐋" * 10_000 for _ in range(60)))
    searches: list[dict[str, Any]] = [{"query": "whale", "limit": 10}, {}, {"around": 30}]
    for arguments in searches:
        assert len((await stage.call(session_id=EARLIER, **arguments)).output) < 40_000


async def test_a_very_high_place_is_harmless(stage: Stage) -> None:
    stage.say(EARLIER, "m1")
    assert [message["seq"] for message in (await stage.done(session_id=EARLIER, around=10**30))["messages"]] == [1]


async def recalling(*scripts: Script) -> tuple[Stage, ScriptedModel]:
    """A stage with a model that tells what was found."""
    model = ScriptedModel(*scripts)
    stage = Stage(model)
    await stage.fill()
    return stage, model


ASKED: dict[str, Any] = {"query": "whale", "summarize": True}
USE = RouteUse(route=PRIMARY, attempts=1, usage=USAGE)


async def test_what_was_found_is_told_by_the_chain_for_it() -> None:
    stage, model = await recalling([[reply("They call it Moby.")]])
    stage.say(EARLIER, "What do we call the whale?", "Moby, said Ada.", "good")
    outcome = await stage.call(**ASKED)
    (hit,) = json.loads(outcome.output)["hits"]
    assert hit["summary"] == "They call it Moby."
    assert (hit["session_id"], hit["seq"], hit["messages_in_session"]) == (EARLIER, 1, 3)
    assert "messages" not in hit
    assert outcome.uses == (USE,)
    assert stage.clients.asked == [Purpose.SESSION_SEARCH]
    (request,) = model.requests
    text = str(request.messages[0].content)
    assert text.startswith("Searched for: whale\n")
    assert "user: What do we call the whale?\nassistant: Moby, said Ada.\nuser: good" in text
    assert request.tools == ()


async def test_without_a_word_of_it_no_model_is_asked() -> None:
    stage, model = await recalling()
    stage.say(EARLIER, "the whale")
    (hit,) = (await stage.done(query="whale"))["hits"]
    assert "messages" in hit
    await stage.done(query="unicorn", summarize=True)
    await stage.done(session_id=EARLIER, summarize=True)
    assert model.requests == []


GONE = AttemptFailed(
    attempt=1,
    route=PRIMARY,
    reason=FailureReason.SERVER_ERROR,
    status=500,
    message="It broke.",
    text_shown=False,
    next_route=None,
    delay_s=0,
)
FAULTS: dict[str, tuple[Script, str, tuple[RouteUse, ...]]] = {
    "an error": ([ModelUnavailableError(FailureReason.OVERLOADED, "Busy.")], "Not summarised: Busy.", ()),
    "failed attempts": (
        [[GONE], ModelUnavailableError(FailureReason.SERVER_ERROR, "It broke.")],
        "Not summarised: It broke.",
        (RouteUse(route=PRIMARY, attempts=1, failed=1),),
    ),
    "nothing": ([[reply(" ")]], "Not summarised: The model gave no answer.", (USE,)),
}


@pytest.mark.parametrize(("script", "note", "uses"), FAULTS.values(), ids=FAULTS)
async def test_what_no_model_tells_is_shown(script: Script, note: str, uses: tuple[RouteUse, ...]) -> None:
    stage, _ = await recalling(script)
    stage.say(EARLIER, "the whale")
    outcome = await stage.call(**ASKED)
    assert not outcome.is_error
    (hit,) = json.loads(outcome.output)["hits"]
    assert hit["note"] == note
    assert hit["messages"][0]["text"] == "the whale"
    assert outcome.uses == uses


async def test_a_tenant_without_a_chain_is_shown_what_was_found(stage: Stage) -> None:
    stage.say(EARLIER, "the whale")
    (hit,) = (await stage.done(**ASKED))["hits"]
    assert hit["note"] == "Not summarised: This tenant has no chat chain."
    assert hit["messages"]


async def test_only_the_first_hits_are_told_and_a_summary_is_bounded() -> None:
    stage, model = await recalling(*[[[reply("s" * 9_000)]]] * MAX_TOLD)
    stage.say(EARLIER, *(f"whale {number}" for number in range(8)))
    hits = (await stage.done(**ASKED, session_id=EARLIER, limit=7))["hits"]
    assert ["summary" in hit for hit in hits] == [True] * MAX_TOLD + [False] * 2
    assert {len(hit["summary"]) for hit in hits[:MAX_TOLD]} == {MAX_SUMMARY}
    assert len(model.requests) == MAX_TOLD


async def test_a_long_conversation_is_read_about_the_place_that_was_found() -> None:
    stage, model = await recalling([[reply("Told.")]])
    stage.say(
        EARLIER, *(f"<{number}> " + "é" * 3_000 for number in range(30)), "the whale " + "w" * 50_000, *("x" * 3_000 for _ in range(30))
    )
    await stage.done(**ASKED)
    text = str(model.requests[0].messages[0].content)
    assert len(text.encode()) < 33_000
    assert "the whale www" in text
    assert "<29> é" in text
    assert "<10>" not in text


async def test_a_search_that_is_told_tells_nothing_of_others() -> None:
    stage, model = await recalling([[reply("Told.")]])
    stage.say(FOREIGN, "a foreign whale")
    stage.say(EARLIER, "the whale")
    assert len((await stage.done(**ASKED))["hits"]) == 1
    assert "foreign" not in str(model.requests[0].messages)
