"""What every search store must do."""

import pytest

from app.clock import SystemClock
from app.domain.ids import SessionId, TenantId
from app.domain.messages import Message, MessageKind, Role, ToolCall, content_text
from app.domain.recall import Reader, SearchHit, SessionExcerpt
from app.ports import SearchStore
from app.store.search import SearchRepository
from app.store.search_index import SearchIndex
from tests.contract.worlds import PostgresWorld, World, new_session
from tests.fakes.search import InMemorySearch
from tests.fakes.sessions import InMemorySessions


@pytest.fixture
def store(world: World) -> SearchStore:
    if isinstance(world, PostgresWorld):
        return SearchRepository(world.database, SearchIndex(world.database, SystemClock()))
    assert isinstance(world.sessions, InMemorySessions)
    return InMemorySearch(world.sessions)


def user(text: str) -> Message:
    return Message(role=Role.USER, content=text)


def assistant(text: str) -> Message:
    return Message(role=Role.ASSISTANT, content=text)


def said(*texts: str) -> list[Message]:
    return [assistant(text) if place % 2 else user(text) for place, text in enumerate(texts)]


async def reader_in(world: World, tenant_id: TenantId, name: str | None = None) -> Reader:
    return Reader(tenant_id=tenant_id, session_id=await new_session(world, tenant_id, user=name))


def places(hits: list[SearchHit]) -> list[tuple[SessionId, int]]:
    return [(hit.excerpt.session_id, hit.seq) for hit in hits]


def texts(excerpt: SessionExcerpt | None) -> list[str]:
    assert excerpt is not None
    return [content_text(stored.message.content) for stored in excerpt.messages]


async def test_a_message_is_found_by_its_words_with_its_neighbours(world: World, store: SearchStore, tenant_id: TenantId) -> None:
    reader = await reader_in(world, tenant_id)
    session_id = await new_session(world, tenant_id, *said(*(f"m{number}" for number in range(1, 6)), "The Blue-Whale swims", "m7", "m8"))

    (hit,) = await store.discover(reader, "blue WHALE", None, 5)

    assert (hit.excerpt.session_id, hit.seq, hit.hits, hit.excerpt.total) == (session_id, 6, 1, 8)
    assert texts(hit.excerpt) == ["m3", "m4", "m5", "The Blue-Whale swims", "m7", "m8"]
    assert hit.excerpt.created_at_ms > 1_600_000_000_000


FINDABLE = {
    "a beginning of a word": ("invoice", "The invoices are late"),
    "a word with an accent": ("MÜNCHEN", "Ab nach münchen"),
    "a sharp s": ("strasse", "Die Straße"),
    "a compatibility form": ("\uff11\uff12\uff13", "Number 123"),
    "Chinese without spaces": ("数据库", "我们决定用数据库来保存"),
    "one Chinese character": ("库", "数据库"),
    "Japanese": ("東京タワー", "昨日東京タワーに行った"),
    "Korean": ("데이터", "데이터베이스를 씁니다"),
    "Thai": ("ภาษา", "ฉันพูดภาษาไทย"),
    "an identifier": ("user_id", "column user_id is missing"),
    "Cyrillic": ("Привет", "ПРИВЕТ, мир"),
}


@pytest.mark.parametrize("example", FINDABLE.values(), ids=FINDABLE)
async def test_text_is_found_in_any_script(world: World, store: SearchStore, tenant_id: TenantId, example: tuple[str, str]) -> None:
    query, text = example
    reader = await reader_in(world, tenant_id)
    session_id = await new_session(world, tenant_id, user(text), assistant("something else"))
    assert places(await store.discover(reader, query, None, 5)) == [(session_id, 1)]


async def test_calls_and_results_of_tools_are_found_and_notes_are_not(world: World, store: SearchStore, tenant_id: TenantId) -> None:
    reader = await reader_in(world, tenant_id)
    session_id = await new_session(
        world,
        tenant_id,
        user("go"),
        Message(role=Role.ASSISTANT, tool_calls=(ToolCall("c", "get_weather", '{"city":"Ulm"}'),)),
        Message(role=Role.TOOL, content="hailstorm", tool_call_id="c", tool_name="get_weather"),
        Message(role=Role.ASSISTANT, content="hidden hailstorm", kind=MessageKind.NOTE),
    )
    assert places(await store.discover(reader, "ulm", None, 5)) == [(session_id, 2)]
    assert places(await store.discover(reader, "hailstorm", None, 5)) == [(session_id, 3)]
    assert await store.discover(reader, "hidden", None, 5) == []
    assert texts(await store.excerpt(reader, session_id, 20, 10)) == ["go", "", "hailstorm"]


async def test_where_no_message_has_all_words_those_with_most_come_first(world: World, store: SearchStore, tenant_id: TenantId) -> None:
    reader = await reader_in(world, tenant_id)
    one = await new_session(world, tenant_id, user("the budget is small"))
    two = await new_session(world, tenant_id, user("the budget for marketing"))
    three = await new_session(world, tenant_id, user("the weather"))
    found = places(await store.discover(reader, "what is the budget of marketing", None, 5))
    assert found == [(two, 1), (one, 1)], f"{three} only shares a short word"


async def test_a_query_without_words_finds_nothing(world: World, store: SearchStore, tenant_id: TenantId) -> None:
    reader = await reader_in(world, tenant_id)
    await new_session(world, tenant_id, user("a & b | !c"))
    assert await store.discover(reader, " &|!:*'\\ ", None, 5) == []
    assert len(await store.discover(reader, "'a':* & b'", None, 5)) == 1


async def test_each_session_has_one_hit_unless_one_session_is_asked_for(world: World, store: SearchStore, tenant_id: TenantId) -> None:
    reader = await reader_in(world, tenant_id)
    one = await new_session(world, tenant_id, *said("whale one", "whale two", "whale three"))
    two = await new_session(world, tenant_id, user("whale four"))

    found = await store.discover(reader, "whale", None, 5)

    assert sorted(places(found)) == sorted([(one, 3), (two, 1)])
    assert {hit.excerpt.session_id: hit.hits for hit in found} == {one: 3, two: 1}
    assert len(await store.discover(reader, "whale", None, 1)) == 1
    assert places(await store.discover(reader, "whale", one, 5)) == [(one, 3), (one, 2), (one, 1)]


async def test_of_the_own_session_only_archived_messages_are_found(world: World, store: SearchStore, tenant_id: TenantId) -> None:
    own = await new_session(world, tenant_id, *said("whale one", "whale two", "whale three", "whale four"))
    reader = Reader(tenant_id=tenant_id, session_id=own)
    assert await store.discover(reader, "whale", None, 5) == []
    await world.archive(own, 3)
    assert places(await store.discover(reader, "whale", own, 5)) == [(own, 2), (own, 1)]
    (hit,) = await store.discover(reader, "whale", None, 5)
    assert [stored.archived for stored in hit.excerpt.messages] == [True, True, False, False]


async def test_archived_messages_of_other_sessions_are_found(world: World, store: SearchStore, tenant_id: TenantId) -> None:
    reader = await reader_in(world, tenant_id)
    session_id = await new_session(world, tenant_id, *said("whale", "ok"))
    await world.archive(session_id, 9)
    assert places(await store.discover(reader, "whale", None, 5)) == [(session_id, 1)]


async def test_tenants_and_end_users_do_not_meet(world: World, store: SearchStore, tenant_id: TenantId) -> None:
    other = await world.tenant()
    of_ada = await new_session(world, tenant_id, user("whale of ada"), user="ada")
    of_bob = await new_session(world, tenant_id, user("whale of bob"), user="bob")
    of_nobody = await new_session(world, tenant_id, user("whale of nobody"))
    foreign = await new_session(world, other, user("whale of the other ada"), user="ada")
    for name, own in (("ada", of_ada), ("bob", of_bob), (None, of_nobody)):
        reader = await reader_in(world, tenant_id, name)
        assert places(await store.discover(reader, "whale", None, 10)) == [(own, 1)]
        assert places(await store.discover(reader, "whale other", None, 10)) == [(own, 1)]
        assert places(await store.discover(reader, "whale", None, 1)) == [(own, 1)], "what others said takes no place of a hit"
        assert [excerpt.session_id for excerpt in await store.recent(reader, 10)][-1:] == [own]
        for hidden in {of_ada, of_bob, of_nobody, foreign} - {own}:
            assert await store.discover(reader, "whale", hidden, 10) == []
            assert await store.excerpt(reader, hidden, 20, 10) is None
            assert await store.around(reader, hidden, 1, 10) is None


async def test_a_reader_whose_session_is_foreign_or_unknown_finds_nothing(world: World, store: SearchStore, tenant_id: TenantId) -> None:
    session_id = await new_session(world, tenant_id, user("whale"))
    foreign = await new_session(world, await world.tenant())
    for own in (foreign, SessionId("sess_unknown")):
        reader = Reader(tenant_id=tenant_id, session_id=own)
        assert await store.discover(reader, "whale", None, 5) == []
        assert await store.recent(reader, 5) == []
        assert await store.excerpt(reader, session_id, 1, 1) is None


async def test_a_session_is_read_at_both_ends_and_around_a_place(world: World, store: SearchStore, tenant_id: TenantId) -> None:
    reader = await reader_in(world, tenant_id)
    session_id = await new_session(world, tenant_id, *said(*(f"m{number}" for number in range(1, 41))))

    ends = await store.excerpt(reader, session_id, 3, 2)

    assert texts(ends) == ["m1", "m2", "m3", "m39", "m40"]
    assert ends is not None
    assert ends.total == 40
    assert texts(await store.excerpt(reader, session_id, 30, 20)) == [f"m{number}" for number in range(1, 41)]
    assert texts(await store.around(reader, session_id, 20, 2)) == ["m18", "m19", "m20", "m21", "m22"]
    assert texts(await store.around(reader, session_id, 1, 1)) == ["m1", "m2"]
    assert texts(await store.around(reader, session_id, 999, 1)) == ["m39", "m40"]


async def test_the_newest_other_sessions_come_first_each_with_its_beginning(world: World, store: SearchStore, tenant_id: TenantId) -> None:
    reader = await reader_in(world, tenant_id)
    ids = [await new_session(world, tenant_id, user(f"begin {number}"), assistant("ok")) for number in range(3)]
    empty = await new_session(world, tenant_id)

    found = await store.recent(reader, 10)

    assert [excerpt.session_id for excerpt in found] == sorted([*ids, empty], reverse=True)
    begins = {excerpt.session_id: texts(excerpt) for excerpt in found}
    assert begins == {**{session_id: [f"begin {number}"] for number, session_id in enumerate(ids)}, empty: []}
    assert len(await store.recent(reader, 2)) == 2
