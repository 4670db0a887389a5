"""`python -m benchmarks.limits [--quick]`: do the limits hold in the provider's own log, over two processes and in real time?

Two pairs of gateways (`python -m app serve`), one Postgres, and the simulator as the provider. Each pair answers two tenants, one with a
limit of requests and one of tokens a minute, that post far more turns at once than a minute has room for. In the second pair one process
is killed at the beginning of the second minute, with calls under way, and started again; turns that were lost with it are posted again.
Then the provider's log is looked at: no 60 seconds, wherever they begin, may hold more than the limit, and every turn must have completed.
Tokens are counted as the provider reports them; answers are of 20 to 200 tokens, and 200 are booked.

Takes a little over three minutes, two with `--quick`. Exit status 1 when a limit was exceeded or a turn lost.
"""

import argparse
import asyncio
import re
import secrets
import signal
import sys
from collections.abc import AsyncIterator, Awaitable, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import httpx

from app.domain.tenants import ProviderSpec, Purpose, RouteSpec, TenantSpec
from app.store.embedded import start_embedded
from app.store.migrate import upgrade
from benchmarks.processes import Child
from benchmarks.report import table
from benchmarks.stand import run_folder, wait_until_ready
from benchmarks.tenants import write_tenants
from benchmarks.turns import client_of, new_session, run_turn
from benchmarks.windows import Call, Fullest, fullest

_ANSWER_TOKENS = 200
"""Of the longest answer; as many are booked for each."""
_CALL_TOKENS = 250
"""About what a call is booked with: makes a limit of tokens one of as many calls as the limit of requests."""
_FIRST_MS = 1_500
"""Before an answer, so that calls are under way when a process is killed."""
_PATIENCE_S = 900.0
_LEASE = {"GATEWAY_LEASE_TTL_S": "4", "GATEWAY_LEASE_BEAT_S": "1"}
_POSTS = 5
_START_S = 60.0
_POLL_S = 0.2
_LONGEST_S = 600.0
_BYTES_PER_TOKEN = 4
"""How the simulator counts a request."""
_TOKENS = re.compile(r"tokens=(\d+)")


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """How much is done: calls that a minute has room for, and turns that are posted at once to a steady pair and to one with a crash."""

    per_minute: int
    turns: int
    turns_with_crash: int


FULL = Plan(per_minute=60, turns=150, turns_with_crash=150)
QUICK = Plan(per_minute=10, turns=20, turns_with_crash=18)


@dataclass(slots=True, kw_only=True)
class Check:
    """One tenant with its limit, and how its turns went."""

    name: str
    rpm: int | None
    tpm: int | None
    turns: int
    completed: int = 0
    posted_again: int = 0
    tokens: int = 0
    """Of the turns that completed, as the gateway says."""
    problems: list[str] = field(default_factory=list)

    @property
    def key(self) -> str:
        """Of the tenant."""
        return f"agw_check0{self.name}"

    @property
    def credential(self) -> str:
        """By which the provider tells the tenants apart."""
        return f"sk-check-{self.name}"

    def spec(self, base_url: str) -> TenantSpec:
        """The tenant."""
        provider = ProviderSpec(name="simulator", base_url=base_url, api_key=self.credential, rpm=self.rpm, tpm=self.tpm)
        route = RouteSpec(provider="simulator", model="sim", output_tokens=_ANSWER_TOKENS, patience_s=_PATIENCE_S)
        return TenantSpec(name=self.name, api_keys=(self.key,), providers=(provider,), chains={Purpose.CHAT: (route,)})

    @property
    def over(self) -> bool:
        """Whether every turn has ended, well or not."""
        return self.completed + len(self.problems) >= self.turns

    async def run(self, urls: Sequence[str]) -> None:
        """Post all turns at once, spread over the gateways, and wait for their ends."""
        async with client_of(self.key) as http:
            sessions = [await new_session(http, urls[0]) for _ in range(self.turns)]
            await asyncio.gather(*(self._turn(http, urls, session_id, number) for number, session_id in enumerate(sessions)))

    async def _turn(self, http: httpx.AsyncClient, urls: Sequence[str], session_id: str, number: int) -> None:
        home = number % len(urls)
        text = f"Turn {number}. [[sim tokens={20 + number * 37 % 181} first_ms={_FIRST_MS}]]"
        for post in range(_POSTS):
            key = f"{self.name}-{number}-{post}"
            try:
                end = await run_turn(http, [*urls[home:], *urls[:home]], session_id, text=text, key=key)
            except httpx.HTTPStatusError as error:
                self.problems.append(f"turn {number} was refused with status {error.response.status_code}")
                return
            if end.type == "turn.completed":
                self.completed += 1
                self.tokens += end.usage.input_tokens + end.usage.output_tokens
                return
            if end.reason != "worker_lost":
                self.problems.append(f"turn {number} ended as {end.type}: {end.reason}")
                return
            self.posted_again += 1
        self.problems.append(f"turn {number} was lost {_POSTS} times")


def _checks(plan: Plan) -> tuple[list[Check], list[Check]]:
    """Those of the steady pair, and those of the pair with a crash."""
    rpm, tpm = plan.per_minute, plan.per_minute * _CALL_TOKENS
    steady = [
        Check(name="requests", rpm=rpm, tpm=None, turns=plan.turns),
        Check(name="tokens", rpm=None, tpm=tpm, turns=plan.turns),
    ]
    crash = [
        Check(name="requests-crash", rpm=rpm, tpm=None, turns=plan.turns_with_crash),
        Check(name="tokens-crash", rpm=None, tpm=tpm, turns=plan.turns_with_crash),
    ]
    return steady, crash


class Provider:
    """The simulator's log."""

    def __init__(self, base_url: str) -> None:
        self.base_url = base_url
        self._calls: dict[str, list[Call]] = {}
        self._seen = 0

    async def look(self) -> None:
        """Read what is new."""
        async with httpx.AsyncClient() as http:
            url = self.base_url.removesuffix("/v1") + "/_simulator/requests"
            response = await http.get(url, params={"after": self._seen})
        requests: list[dict[str, Any]] = response.raise_for_status().json()["requests"]
        for request in requests:
            credential = request["headers"]["authorization"].removeprefix("Bearer ")
            self._calls.setdefault(credential, []).append(Call(request["received_at"], _tokens(request)))
            self._seen = request["number"]

    def calls(self, check: Check) -> list[Call]:
        """What a tenant's credential was used for, in the order of arrival."""
        return self._calls.get(check.credential, [])


def _tokens(request: dict[str, Any]) -> int:
    """The usage that the simulator reports for a request: a part of its bytes, and the tokens it was told to say."""
    said = _TOKENS.search(request["body"]["messages"][-1]["content"])
    assert said is not None
    return max(1, int(request["headers"]["content-length"]) // _BYTES_PER_TOKEN) + int(said.group(1))


class Pair:
    """Two gateways on one database."""

    def __init__(self, folder: Path, environment: dict[str, str]) -> None:
        self._folder = folder
        self._environment = environment
        self._children: list[Child] = []
        self.urls: list[str] = []

    async def start(self) -> None:
        """Start both, on free ports."""
        for _ in range(2):
            child, url = await self._serve(0)
            self._children.append(child)
            self.urls.append(url)

    async def crash(self) -> None:
        """Kill one and start it again where it was."""
        await self._children[0].kill()
        self._children[0], _ = await self._serve(httpx.URL(self.urls[0]).port or 0)

    async def stop(self) -> None:
        """End both."""
        for child in self._children:
            await child.kill()

    async def _serve(self, port: int) -> tuple[Child, str]:
        child = await Child.start(
            "benchmarks.application", "serve", "--port", str(port), log_dir=self._folder, environment=self._environment
        )
        url = await _hear_url(child)
        await wait_until_ready(httpx.URL(url).port or 0)
        return child, url


async def _hear_url(child: Child) -> str:
    return (await child.hear(_START_S)).decode().split()[-1]


async def _crash_in_the_second_minute(pair: Pair, provider: Provider, checks: Sequence[Check], plan: Plan) -> None:
    """When that minute has begun for each tenant: calls are under way then, and others wait with their places booked."""
    while any(not _second_minute(provider.calls(check)) for check in checks):
        if all(check.over for check in checks):
            checks[0].problems.append("all turns were over before the second minute: nothing was killed")
            return
        await asyncio.sleep(_POLL_S)
        await provider.look()
    print(f"  killed after {sum(len(provider.calls(check)) for check in checks)} of about {plan.turns_with_crash * len(checks)} calls")
    await pair.crash()


def _second_minute(calls: Sequence[Call]) -> bool:
    return bool(calls) and calls[-1].at - calls[0].at > 60.0


@asynccontextmanager
async def _open(folder: Path, checks: Sequence[Check]) -> AsyncIterator[tuple[Provider, Pair, Pair]]:
    """Everything that runs, ready for turns. Postgres is not durable: nothing here depends on it."""
    async with AsyncExitStack() as stack:
        postgres = stack.enter_context(start_embedded(folder / "postgres", durable=False))
        await upgrade(postgres.url)
        simulator = await Child.start("benchmarks.application", "simulate", "--port", "0", log_dir=folder)
        stack.push_async_callback(simulator.kill)
        provider = Provider(await _hear_url(simulator))
        secret_key = secrets.token_hex(32)
        await write_tenants(postgres.url, secret_key, [check.spec(provider.base_url) for check in checks])
        environment = {"DATABASE_URL": postgres.url, "GATEWAY_SECRET_KEY": secret_key, **_LEASE}
        pairs = Pair(folder, environment), Pair(folder, environment)
        for pair in pairs:
            stack.push_async_callback(pair.stop)
            await pair.start()
        yield provider, *pairs


async def _run(plan: Plan) -> tuple[list[Check], Provider]:
    task = asyncio.current_task()
    assert task is not None
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, task.cancel)  # as Ctrl-C does: children are ended first
    steady, crash = _checks(plan)
    checks = [*steady, *crash]
    with run_folder() as folder:
        async with _open(folder, checks) as (provider, steady_pair, crash_pair):
            turns = [check.run(steady_pair.urls) for check in steady] + [check.run(crash_pair.urls) for check in crash]
            await _within_time(asyncio.gather(*turns, _crash_in_the_second_minute(crash_pair, provider, crash, plan)))
            await provider.look()
    return checks, provider


async def _within_time(everything: Awaitable[object]) -> None:
    try:
        async with asyncio.timeout(_LONGEST_S):
            await everything
    except TimeoutError:
        print(f"not over after {_LONGEST_S:.0f} s", file=sys.stderr)  # what did not complete by then is counted as lost


def _judge(check: Check, calls: Sequence[Call], most: Fullest) -> None:
    """Add what is wrong."""
    if check.rpm is not None and most.calls > check.rpm:
        check.problems.append(f"{most.calls} requests in 60 s, {check.rpm} are allowed")
    if check.tpm is not None and most.tokens > check.tpm:
        check.problems.append(f"{most.tokens} tokens in 60 s, {check.tpm} are allowed")
    if check.completed < check.turns:
        check.problems.append(f"{check.turns - check.completed} turns did not complete")
    if not check.posted_again and (len(calls), sum(call.tokens for call in calls)) != (check.turns, check.tokens):
        check.problems.append(f"the provider saw {len(calls)} requests and {sum(call.tokens for call in calls)} tokens")


_HEADS = ("tenant", "limit", "turns", "completed", "posted again", "calls", "over s", "most calls in 60 s", "most tokens in 60 s", "")


def _row(check: Check, calls: Sequence[Call], most: Fullest) -> tuple[str, ...]:
    return (
        check.name,
        f"{check.rpm} requests" if check.rpm is not None else f"{check.tpm} tokens",
        str(check.turns),
        str(check.completed),
        str(check.posted_again),
        str(len(calls)),
        f"{calls[-1].at - calls[0].at:.1f}" if calls else "-",
        str(most.calls),
        str(most.tokens),
        "FAILED" if check.problems else "kept",
    )


def main() -> int:
    """Run the check that the command line asks for."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.limits", description="Whether rate limits hold over several processes.")
    parser.add_argument("--quick", action="store_true", help="10 calls a minute and 20 turns in place of 60 and 150")
    plan = QUICK if parser.parse_args().quick else FULL
    print(f"{plan.turns} turns at once for each tenant, {plan.per_minute} calls a minute; this takes minutes", flush=True)
    checks, provider = asyncio.run(_run(plan))
    rows = []
    for check in checks:
        calls = provider.calls(check)
        most = fullest(calls)
        _judge(check, calls, most)
        rows.append(_row(check, calls, most))
    print("\n" + table(_HEADS, rows))
    for check in checks:
        for problem in check.problems:
            print(f"{check.name}: {problem}", file=sys.stderr)
    return 1 if any(check.problems for check in checks) else 0


if __name__ == "__main__":
    sys.exit(main())
