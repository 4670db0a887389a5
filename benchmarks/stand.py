"""The test stand: Postgres, provider and gateway of a run, and the sessions that turns are posted to."""

import asyncio
import secrets
import tempfile
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import asyncpg
import httpx

from app.store.embedded import start_embedded
from app.store.migrate import upgrade
from benchmarks.certificates import write_certificate
from benchmarks.processes import Child, ChildFailedError, Cores
from benchmarks.scenarios import Scenario

PLAIN_KEY = "agw_benchmark0plain"
TLS_KEY = "agw_benchmark0secured"
_START_S = 60.0
_POLL_S = 0.05
_START_POLLS = 1200
_ARCHIVE = """
INSERT INTO messages (session_id, seq, id, archived, body)
SELECT $1, -g, 'msg_' || $1 || g, true,
       convert_to('{"role":"user","content":"' || g || repeat(' It is about as long as people write.', 8) || '"}', 'UTF8')
FROM generate_series(1, $2::int) AS g
"""
_MAKERS = 16
"""Sessions made at the same time."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Stand:
    """What stays for the whole run."""

    cores: Cores
    folder: Path
    database_url: str
    secret_key: str
    """Seals the provider's credential; all gateways of the run share it with the database."""
    admin_key: str
    postgres_pid: int
    provider: Child
    base_url: str
    """Of the provider, plain."""
    tls_base_url: str

    @property
    def provider_port(self) -> int:
        """Where the plain provider listens."""
        return httpx.URL(self.base_url).port or 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Gateway:
    """A gateway process, ready."""

    child: Child
    port: int
    key: str
    """Of the tenant whose provider the scenario wants."""
    database_url: str

    @property
    def headers(self) -> dict[str, str]:
        """What a caller sends."""
        return {"Authorization": f"Bearer {self.key}", "Content-Type": "application/json"}

    async def make_sessions(self, count: int, history: int) -> list[str]:
        """Make sessions with `history` imported messages each; returns their ids."""
        body = {"messages": _history(history)} if history else {}
        made: list[str] = []

        async def make(client: httpx.AsyncClient) -> None:
            while len(made) < count:
                made.append("")
                place = len(made) - 1
                made[place] = (await client.post("/sessions", json=body)).raise_for_status().json()["id"]

        async with httpx.AsyncClient(base_url=f"http://127.0.0.1:{self.port}", headers=self.headers, timeout=60) as client:
            await asyncio.gather(*(make(client) for _ in range(_MAKERS)))
        return made

    async def add_archive(self, sessions: list[str], count: int) -> None:
        """Put `count` messages that have left the context before those of each session, as compactions leave them."""
        connection: Any = await asyncpg.connect(self.database_url)
        try:
            for session in sessions:
                await connection.execute(_ARCHIVE, session, count)
            await connection.execute("ANALYZE messages")
        finally:
            await connection.close()


@contextmanager
def run_folder() -> Iterator[Path]:
    """A folder for one run, gone afterwards."""
    with tempfile.TemporaryDirectory(prefix="agw-bench-") as name:
        folder = Path(name)
        folder.chmod(0o755)  # the account that Postgres runs as passes through
        yield folder


@asynccontextmanager
async def open_stand(cores: Cores) -> AsyncIterator[Stand]:
    """Start what stays, and end it."""
    with run_folder() as folder, start_embedded(folder / "postgres", durable=True) as postgres:
        assert postgres.process is not None
        await upgrade(postgres.url)
        certificate = folder / "provider.pem"
        write_certificate(certificate)
        provider = await Child.start("benchmarks.provider", str(certificate), log_dir=folder)
        try:
            base_url, tls_base_url = [(await provider.hear(_START_S)).decode().strip() for _ in range(2)]
            yield Stand(
                cores=cores,
                folder=folder,
                database_url=postgres.url,
                secret_key=secrets.token_hex(32),
                admin_key=secrets.token_hex(32),
                postgres_pid=postgres.process.pid,
                provider=provider,
                base_url=base_url,
                tls_base_url=tls_base_url,
            )
        finally:
            await provider.stop()


@asynccontextmanager
async def open_gateway(stand: Stand, scenario: Scenario) -> AsyncIterator[Gateway]:
    """Start a fresh gateway process, wait until it is ready, and end it."""
    environment = {
        "DATABASE_URL": stand.database_url,
        "GATEWAY_SECRET_KEY": stand.secret_key,
        "GATEWAY_ADMIN_KEY": stand.admin_key,
        "SSL_CERT_FILE": str(stand.folder / "provider.pem"),
    }
    child = await Child.start("benchmarks.gateway", log_dir=stand.folder, environment=environment, cores=stand.cores.gateway)
    try:
        port = int(await child.hear(_START_S))
        await wait_until_ready(port)
        await _put_tenants(stand, port)
        key = TLS_KEY if scenario.tls else PLAIN_KEY
        yield Gateway(child=child, port=port, key=key, database_url=stand.database_url)
    finally:
        await child.stop()


async def last_provider_request(stand: Stand) -> str:
    """The body of the provider's newest plain request: what a direct call has to send to be the same."""
    async with httpx.AsyncClient() as client:
        answer = await client.get(stand.base_url.removesuffix("/v1") + "/_simulator/requests")
        requests: list[dict[str, Any]] = answer.raise_for_status().json()["requests"]
    return httpx.Request("POST", stand.base_url, json=requests[-1]["body"]).content.decode()


async def _put_tenants(stand: Stand, port: int) -> None:
    tenants = (("plain", PLAIN_KEY, stand.base_url), ("secured", TLS_KEY, stand.tls_base_url))
    async with httpx.AsyncClient(base_url=f"http://127.0.0.1:{port}", headers={"Authorization": f"Bearer {stand.admin_key}"}) as client:
        for name, key, base_url in tenants:
            provider = {"name": "simulator", "api_mode": "chat_completions", "base_url": base_url, "api_key": "sk-benchmark"}
            route = {"provider": "simulator", "model": "sim", "max_attempts": 1}
            tenant = {"name": name, "api_keys": [key], "providers": [provider], "chains": {"chat": [route]}}
            (await client.put(f"/admin/tenants/{name}", json=tenant)).raise_for_status()


async def wait_until_ready(port: int) -> None:
    """Return when the gateway takes requests. Raises ChildFailedError."""
    async with httpx.AsyncClient(base_url=f"http://127.0.0.1:{port}") as client:
        for _ in range(_START_POLLS):
            if await _is_ready(client):
                return
            await asyncio.sleep(_POLL_S)
    raise ChildFailedError("the gateway does not become ready")


async def _is_ready(client: httpx.AsyncClient) -> bool:
    try:
        return (await client.get("/readyz")).is_success
    except httpx.TransportError:
        return False


def _history(count: int) -> list[dict[str, str]]:
    """A conversation of `count` messages, about 300 bytes each, that ends with an answer."""
    roles = ("user", "assistant")
    return [{"role": roles[index % 2], "content": f"{index}: " + "It is about as long as people write. " * 8} for index in range(count)]
