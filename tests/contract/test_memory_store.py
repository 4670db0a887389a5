"""What every memory store must do."""

import asyncio

import msgspec
import pytest

from app.domain.errors import NotFoundError
from app.domain.ids import SessionId, TenantId
from app.domain.memory import Memory
from app.ports import MemoryStore
from app.store.memories import MemoryRepository
from tests.contract.worlds import PostgresWorld, World, new_session
from tests.fakes.memories import InMemoryMemories
from tests.fakes.sessions import InMemorySessions


@pytest.fixture
def store(world: World) -> MemoryStore:
    if isinstance(world, PostgresWorld):
        return MemoryRepository(world.database)
    assert isinstance(world.sessions, InMemorySessions)
    return InMemoryMemories(world.sessions)


async def kept(store: MemoryStore, tenant_id: TenantId, name: str | None, **texts: str) -> bool:
    memory = await store.of_user(tenant_id, name)
    return await store.replace(tenant_id, name, msgspec.structs.replace(memory, **texts))


async def test_nothing_is_kept_at_first(store: MemoryStore, tenant_id: TenantId) -> None:
    assert await store.of_user(tenant_id, "ada") == Memory(notes="", user="", revision=0)


async def test_what_was_written_comes_back_with_a_higher_revision(store: MemoryStore, tenant_id: TenantId) -> None:
    assert await kept(store, tenant_id, "ada", notes="a\n§\nb", user="likes 🦀")
    assert await kept(store, tenant_id, "ada", notes="a")
    memory = await store.of_user(tenant_id, "ada")
    assert (memory.notes, memory.user, memory.revision) == ("a", "likes 🦀", 2)


async def test_a_write_on_an_old_revision_changes_nothing(store: MemoryStore, tenant_id: TenantId) -> None:
    old = await store.of_user(tenant_id, None)
    assert await kept(store, tenant_id, None, notes="first")
    assert not await store.replace(tenant_id, None, msgspec.structs.replace(old, notes="second"))
    assert not await store.replace(tenant_id, None, Memory(notes="third", revision=7))
    assert (await store.of_user(tenant_id, None)).notes == "first"


async def test_a_revision_that_never_was_makes_no_memory(store: MemoryStore, tenant_id: TenantId) -> None:
    assert not await store.replace(tenant_id, "ada", Memory(notes="x", revision=3))
    assert await store.of_user(tenant_id, "ada") == Memory()


async def test_of_writers_at_once_one_wins(store: MemoryStore, tenant_id: TenantId) -> None:
    for revision in range(3):
        writes = [store.replace(tenant_id, "ada", Memory(notes=f"{number}", revision=revision)) for number in range(8)]
        assert sorted(await asyncio.gather(*writes)) == [False] * 7 + [True]


async def test_tenants_and_end_users_do_not_meet(world: World, store: MemoryStore, tenant_id: TenantId) -> None:
    other = await world.tenant()
    for tenant, user, notes in ((tenant_id, "ada", "of ada"), (tenant_id, None, "of all"), (other, "ada", "of the other ada")):
        assert await kept(store, tenant, user, notes=notes)
    assert (await store.of_user(tenant_id, "ada")).notes == "of ada"
    assert (await store.of_user(tenant_id, None)).notes == "of all"
    assert (await store.of_user(other, "ada")).notes == "of the other ada"
    assert (await store.of_user(other, None)).notes == ""


async def test_a_session_has_the_memory_of_its_end_user(world: World, store: MemoryStore, tenant_id: TenantId) -> None:
    of_ada, of_nobody = await new_session(world, tenant_id, user="ada"), await new_session(world, tenant_id)
    assert await store.of_session(tenant_id, of_ada) == ("ada", Memory())
    assert await kept(store, tenant_id, "ada", notes="of ada")
    assert await kept(store, tenant_id, None, notes="of all")
    assert await store.of_session(tenant_id, of_ada) == ("ada", Memory(notes="of ada", revision=1))
    assert await store.of_session(tenant_id, of_nobody) == (None, Memory(notes="of all", revision=1))


async def test_an_unknown_and_a_foreign_session_have_none(world: World, store: MemoryStore, tenant_id: TenantId) -> None:
    foreign = await new_session(world, await world.tenant(), user="ada")
    for session_id in (foreign, SessionId("sess_unknown")):
        with pytest.raises(NotFoundError):
            await store.of_session(tenant_id, session_id)
