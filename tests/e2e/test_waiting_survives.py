"""Turns that wait while processes are killed, restarted and drained."""

import signal
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import httpx
import pytest

from app.clock import SystemClock
from app.domain.tools import INTERRUPTED_OUTPUT
from app.simulator.server import Simulator
from app.store.engine import Database
from app.store.secrets import Sealer
from app.store.tenants import TenantRepository
from tests.e2e.harness import KEY, Client, tenant
from tests.e2e.processes import FAST_LEASE, GatewayProcess, gateway_process
from tests.e2e.scenes import assert_goes_on, ended, of_type
from tests.e2e.waiting import ASK, MODULES, PURGE, answer, answering, check_stream, decides, gives, results_sent, strict, turn_of, wait_for

ENVIRONMENT = {**FAST_LEASE, "GATEWAY_TOOL_MODULES": MODULES}


@pytest.fixture
async def ready_url(database_url: str, provider: Simulator) -> str:
    """A database with a tenant whose provider is the strict simulator."""
    database = Database(database_url, pool_size=2)
    repository = TenantRepository(database, SystemClock(), Sealer("the tests' secret key"), {})
    await repository.apply(tenant("acme", KEY, [provider.base_url]), generate_key=False)
    await database.close()
    return database_url


@asynccontextmanager
async def client_of(gateway: GatewayProcess) -> AsyncIterator[Client]:
    async with httpx.AsyncClient(base_url=gateway.url, headers={"Authorization": f"Bearer {KEY}"}, timeout=30) as http:
        yield Client(http)


async def test_a_turn_that_waits_for_an_approval_outlives_its_process_and_finishes_on_another(
    ready_url: str, tmp_path: Path, provider: Simulator
) -> None:
    async with gateway_process(ready_url, tmp_path, ENVIRONMENT) as other, client_of(other) as there:
        async with gateway_process(ready_url, tmp_path, ENVIRONMENT) as victim, client_of(victim) as here:
            session_id = await here.session()
            before = await wait_for(here, session_id, ("lookup", {"q": "z"}), PURGE, ASK)
            victim.signal(signal.SIGKILL)
            await victim.exit_code(5)
        turn_id = turn_of(before)
        assert (await there.get(turn_id))["status"] == "requires_action"
        rest = await answer(there, turn_id, decides("c1", "approve"), gives("c2", "red"))
        assert rest[-1].type == "turn.completed"
        assert results_sent(provider) == [("c0", "found z"), ("c1", "purged attic"), ("c2", "red")]
        whole = await there.replay(turn_id)
        check_stream(whole)
        assert [frame.raw for frame in whole] == [frame.raw for frame in [*before, *rest]]
        await assert_goes_on(there, provider, session_id)
    strict(provider)


async def test_a_turn_that_waits_outlives_a_restart_of_every_process(ready_url: str, tmp_path: Path, provider: Simulator) -> None:
    async with gateway_process(ready_url, tmp_path, ENVIRONMENT) as gateway, client_of(gateway) as client:
        turn_id = turn_of(await wait_for(client, await client.session(), ("locate", {})))
        gateway.signal(signal.SIGTERM)
        assert await gateway.exit_code(11) == 0
    async with gateway_process(ready_url, tmp_path, ENVIRONMENT) as gateway, client_of(gateway) as client:
        assert (await client.replay(turn_id))[-1].type == "tool.requires_action"
        rest = await answer(client, turn_id, gives("c0", "in Rome"))
        assert rest[-1].type == "turn.completed"
    assert results_sent(provider) == [("c0", "in Rome")]


async def test_an_approved_call_that_dies_with_its_process_is_not_run_again_and_given_answers_stay(
    ready_url: str, tmp_path: Path, provider: Simulator
) -> None:
    async with gateway_process(ready_url, tmp_path, ENVIRONMENT) as other, client_of(other) as there:
        async with gateway_process(ready_url, tmp_path, ENVIRONMENT) as victim, client_of(victim) as here:
            session_id = await here.session()
            turn_id = turn_of(await wait_for(here, session_id, ("rebuild", {"seconds": 30}), ("locate", {})))
            other.signal(signal.SIGSTOP)  # so that it is the victim that goes on with the turn
            async with answering(here, turn_id, decides("c0", "approve"), gives("c1", "in Rome")) as stream:
                await stream.until("tool.started")
                victim.signal(signal.SIGKILL)
                await victim.exit_code(5)
            other.signal(signal.SIGCONT)
        turn = await ended(there, turn_id, 20)
        assert (turn["status"], turn["reason"]) == ("interrupted", "worker_lost")
        whole = await there.replay(turn_id)
        check_stream(whole)
        assert len(of_type(whole, "tool.started")) == 1
        messages = await assert_goes_on(there, provider, session_id)
        assert [message["content"] for message in messages if message["role"] == "tool"] == [INTERRUPTED_OUTPUT, "in Rome"]
    strict(provider)


async def test_a_drain_hands_over_a_turn_that_has_waited(ready_url: str, tmp_path: Path, provider: Simulator) -> None:
    async with gateway_process(ready_url, tmp_path, ENVIRONMENT) as staying, client_of(staying) as there:
        async with gateway_process(ready_url, tmp_path, ENVIRONMENT) as leaving, client_of(leaving) as here:
            turn_id = turn_of(await wait_for(here, await here.session(), ("rebuild", {"seconds": 1.5}), ("locate", {})))
            staying.signal(signal.SIGSTOP)  # so that it is the other one that goes on with the turn
            async with answering(here, turn_id, decides("c0", "approve"), gives("c1", "in Rome")) as stream:
                await stream.until("tool.started")
                staying.signal(signal.SIGCONT)
                leaving.signal(signal.SIGTERM)
                await stream.read_to_end()
            assert await leaving.exit_code(11) == 0
        whole = await there.replay(turn_id)
        assert whole[-1].type == "turn.completed"
        check_stream(whole)
        assert results_sent(provider) == [("c0", "rebuilt"), ("c1", "in Rome")]
    strict(provider)
