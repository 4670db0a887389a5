"""What an operator does to running replicas."""

import asyncio
import re

from app.simulator.server import Simulator
from tests.e2e.chains import Link, answered_by, chain_spec
from tests.e2e.harness import ADMIN_KEY, Replica

COOLING = re.compile(r"^gateway_cooldowns_active ([\d.]+)$", re.MULTILINE)
KEY = "agw_test-key-of-cooling-0123456789"


async def cooling(replica: Replica, wanted: int) -> None:
    """Return when the replica leaves so many targets alone."""
    async with replica.client(ADMIN_KEY) as admin, asyncio.timeout(20):
        while True:
            found = COOLING.search((await admin.http.get("/metrics")).text)
            if found is not None and float(found.group(1)) == wanted:
                return
            await asyncio.sleep(0.05)


async def test_a_reset_at_one_replica_lets_every_replica_call_the_provider_again(
    gateway: Replica, second: Replica, provider: Simulator
) -> None:
    backup = Simulator()
    await backup.start()
    try:
        links = [Link(url=provider.base_url), Link(url=backup.base_url)]
        await gateway.gateway.tenants.apply(chain_spec("cooling", KEY, links), generate_key=False)
        async with gateway.client(KEY) as here, second.client(KEY) as there, gateway.client(ADMIN_KEY) as admin:
            provider.play("status=429 retry_after=600")
            session = await here.session()
            assert await answered_by(here, session) == "p2"
            await cooling(second, 1)
            assert await answered_by(there, session) == "p2"
            assert len(provider.requests) == 1

            response = await admin.http.post("/admin/providers/cooling/p1/reset")

            assert response.status_code == 200, response.text
            assert [place["health"]["state"] for place in response.json()["routes"]] == ["healthy"]
            for replica, client in ((gateway, here), (second, there)):
                await cooling(replica, 0)
                assert await answered_by(client, session) == "p1"
    finally:
        await backup.stop()
