"""Rounds of one scenario: the direct call and the call through the gateway, in turn."""

import asyncio
import statistics
from collections.abc import Awaitable, Callable, Sequence
from contextlib import suppress
from typing import TypeVar

import msgspec

from benchmarks.jobs import GO, READY, Job, Outcome
from benchmarks.processes import Child, cpu_s, family_cpu_s, machine_cpu_s, rss_mb
from benchmarks.scenarios import TOKENS, Scenario
from benchmarks.stand import Gateway, Stand, last_provider_request, open_gateway

T = TypeVar("T")

_WARM_UP = 64
"""Turns before anything is measured: code paths and connection pools are warm then, and memory has its resting size."""
_WARM_UP_STREAMS = 16
_CONNECT_S = 60.0
_SAMPLE_S = 0.1
_SETTLE_S = 0.5
DISTURBED = 0.25
"""So much of a core used by strangers makes a round suspicious: it is repeated."""
_REPEATS = 1
_LOOKS = 20
_LOOK_S = 0.5
_QUIET = 0.15
"""Before a run the machine is looked at until strangers use less than this part of a core, up to so many times."""


class Latency(msgspec.Struct, frozen=True):
    """Percentiles in ms."""

    p50: float
    p95: float
    p99: float

    def minus(self, other: "Latency") -> "Latency":
        """By how much this is later."""
        return Latency(self.p50 - other.p50, self.p95 - other.p95, self.p99 - other.p99)


class Load(msgspec.Struct, frozen=True, kw_only=True):
    """What one run of the client saw."""

    turns: int
    errors: int
    messages: list[str]
    turns_per_s: float
    first_event: Latency
    first_token: Latency
    total: Latency
    client_cpu: float
    """Part of a core that the client used; so are the next ones."""
    provider_cpu: float
    foreign_cpu: float
    """Used by whatever else runs on this machine."""


class Cost(msgspec.Struct, frozen=True, kw_only=True):
    """What one run through the gateway took."""

    load: Load
    cpu_ms_per_turn: float
    """Of the gateway process alone."""
    cpu_us_per_token: float
    postgres_ms_per_turn: float
    gateway_cpu: float
    """Part of its core that the gateway used."""
    postgres_cpu: float
    rss_growth_mb: float
    """Highest resident memory during the run over that of the idle gateway before the first run."""
    rss_total_mb: float


class _Usage(msgspec.Struct, frozen=True, kw_only=True):
    """CPU time in seconds of everybody: at a moment, or between two."""

    gateway: float
    postgres: float
    provider: float
    machine: float

    def since(self, before: "_Usage") -> "_Usage":
        """What was used between two moments."""
        return _Usage(
            gateway=self.gateway - before.gateway,
            postgres=self.postgres - before.postgres,
            provider=self.provider - before.provider,
            machine=self.machine - before.machine,
        )


class Result(msgspec.Struct, frozen=True, kw_only=True):
    """All rounds of a scenario."""

    scenario: Scenario
    direct: list[Load]
    through: list[Cost]

    @property
    def errors(self) -> int:
        """Turns and direct calls that did not end well."""
        return sum(load.errors for load in self.direct) + sum(cost.load.errors for cost in self.through)

    @property
    def messages(self) -> list[str]:
        """What the first errors were."""
        loads = [*self.direct, *(cost.load for cost in self.through)]
        return [message for load in loads for message in load.messages]

    def cost(self, figure: Callable[[Cost], float]) -> float:
        """The median of a figure over the rounds through the gateway."""
        return statistics.median(map(figure, self.through))

    def seen(self, figure: Callable[[Load], float]) -> tuple[float, float]:
        """The medians of a figure over the rounds, direct and through; direct is not a number where there was no direct run."""
        direct = statistics.median(map(figure, self.direct)) if self.direct else float("nan")
        return direct, statistics.median(figure(cost.load) for cost in self.through)

    def added(self, latency: Callable[[Load], Latency]) -> Latency:
        """By how much the call through the gateway is later, percentile by percentile; medians of the rounds."""
        p50, p95, p99 = (
            self.seen(lambda load: latency(load).p50),
            self.seen(lambda load: latency(load).p95),
            self.seen(lambda load: latency(load).p99),
        )
        return Latency(p50[1] - p50[0], p95[1] - p95[0], p99[1] - p99[0])


async def measure(stand: Stand, scenario: Scenario, say: Callable[[str], None]) -> Result:
    """Run a scenario on a fresh gateway process. Raises ChildFailedError."""
    direct: list[Load] = []
    through: list[Cost] = []
    async with open_gateway(stand, scenario) as gateway:
        await _warm_up(stand, gateway)
        resting_mb = rss_mb(gateway.child.pid)
        for number in range(scenario.rounds):
            cost = await _undisturbed(lambda: _run_through(stand, gateway, scenario, resting_mb), lambda cost: cost.load, say)
            through.append(cost)
            line = f"  round {number + 1}: {cost.cpu_ms_per_turn:.2f} ms of CPU a turn, first token {cost.load.first_token.p50:.1f} ms"
            if not scenario.tls:
                direct.append(await _undisturbed(lambda: _run_direct(stand, scenario), lambda load: load, say))
                line += f" (direct {direct[-1].first_token.p50:.1f} ms)"
            say(line)
    return Result(scenario=scenario, direct=direct, through=through)


async def _undisturbed(run: Callable[[], Awaitable[T]], load_of: Callable[[T], Load], say: Callable[[str], None]) -> T:
    """Run once, or again when something else on the machine took part; a run with errors is never thrown away."""
    best = await run()
    for _ in range(_REPEATS):
        load = load_of(best)
        if load.errors or load.foreign_cpu <= DISTURBED:
            break
        say(f"  disturbed: something else took {load.foreign_cpu:.0%} of a core; once more")
        other = await run()
        if load_of(other).errors or load_of(other).foreign_cpu < load.foreign_cpu:
            best = other
    return best


async def _quiet() -> None:
    """Wait a little for a moment in which the machine is ours."""
    for _ in range(_LOOKS):
        before = machine_cpu_s()
        await asyncio.sleep(_LOOK_S)
        if machine_cpu_s() - before < _QUIET * _LOOK_S:
            return


async def _warm_up(stand: Stand, gateway: Gateway) -> None:
    warm_up = Scenario(name="warm-up", streams=_WARM_UP_STREAMS, turns=_WARM_UP // _WARM_UP_STREAMS, rounds=1)
    job = await _gateway_job(gateway, warm_up)
    async with _Client(stand) as client:
        await client.prepare(job)
        await client.run(job)
    await asyncio.sleep(_SETTLE_S)


async def _run_through(stand: Stand, gateway: Gateway, scenario: Scenario, resting_mb: float) -> Cost:
    job = await _gateway_job(gateway, scenario)
    pid = gateway.child.pid
    async with _Client(stand) as client:
        await client.prepare(job)
        await _quiet()
        peak = _Peak(pid)
        watching = asyncio.ensure_future(peak.watch())
        before = _usage(stand, pid)
        outcome = await client.run(job)
        used = _usage(stand, pid).since(before)
        watching.cancel()
        with suppress(asyncio.CancelledError):
            await watching
    turns = max(1, len(outcome.samples))
    return Cost(
        load=_load(outcome, scenario, used),
        cpu_ms_per_turn=used.gateway / turns * 1e3,
        cpu_us_per_token=used.gateway / turns / TOKENS * 1e6,
        postgres_ms_per_turn=used.postgres / turns * 1e3,
        gateway_cpu=used.gateway / outcome.wall_s,
        postgres_cpu=used.postgres / outcome.wall_s,
        rss_growth_mb=peak.mb - resting_mb,
        rss_total_mb=peak.mb,
    )


async def _run_direct(stand: Stand, scenario: Scenario) -> Load:
    body = await last_provider_request(stand)
    job = Job(
        port=stand.provider_port,
        streams=[["/v1/chat/completions"] * scenario.turns] * scenario.streams,
        headers={"Authorization": "Bearer sk-benchmark", "Content-Type": "application/json"},
        body=body,
        ramp_s=scenario.ramp_s,
        tokens=TOKENS,
        event_mark="data: ",
        token_mark='"delta":{"content":',
        end_mark="data: [DONE]\n",
        timeout_s=scenario.timeout_s,
    )
    async with _Client(stand) as client:
        await client.prepare(job)
        await _quiet()
        before = _usage(stand, None)
        outcome = await client.run(job)
        return _load(outcome, scenario, _usage(stand, None).since(before))


def _usage(stand: Stand, gateway_pid: int | None) -> _Usage:
    return _Usage(
        gateway=cpu_s(gateway_pid) if gateway_pid is not None else 0.0,
        postgres=family_cpu_s(stand.postgres_pid),
        provider=cpu_s(stand.provider.pid),
        machine=machine_cpu_s(),
    )


async def _gateway_job(gateway: Gateway, scenario: Scenario) -> Job:
    sessions = await gateway.make_sessions(scenario.streams * scenario.turns, scenario.history)
    if scenario.archived:
        await gateway.add_archive(sessions, scenario.archived)
    paths = [f"/sessions/{session}/turns" for session in sessions]
    return Job(
        port=gateway.port,
        streams=[paths[index :: scenario.streams] for index in range(scenario.streams)],
        headers=gateway.headers,
        body=msgspec.json.encode({"input": scenario.directive}).decode(),
        ramp_s=scenario.ramp_s,
        tokens=TOKENS,
        event_mark="event: ",
        token_mark="event: message.delta\n",
        end_mark="event: turn.completed",
        timeout_s=scenario.timeout_s,
    )


class _Client:
    """One process of the load client, for one job."""

    def __init__(self, stand: Stand) -> None:
        self._stand = stand
        self._child: Child | None = None

    async def __aenter__(self) -> "_Client":
        self._child = await Child.start("benchmarks.client", log_dir=self._stand.folder)
        return self

    async def __aexit__(self, *_: object) -> None:
        if self._child is not None:
            await self._child.stop()

    async def prepare(self, job: Job) -> None:
        """Connect all streams."""
        assert self._child is not None
        await self._child.say(msgspec.json.encode(job))
        line = (await self._child.hear(_CONNECT_S)).strip()
        assert line == READY, line

    async def run(self, job: Job) -> Outcome:
        """Let them go."""
        assert self._child is not None
        await self._child.say(GO)
        return msgspec.json.decode(await self._child.hear(job.timeout_s + _CONNECT_S), type=Outcome)


class _Peak:
    """The highest resident memory of a process."""

    def __init__(self, pid: int) -> None:
        self._pid = pid
        self.mb = rss_mb(pid)

    async def watch(self) -> None:
        """Look again and again until cancelled."""
        while True:
            await asyncio.sleep(_SAMPLE_S)
            self.mb = max(self.mb, rss_mb(self._pid))


def _load(outcome: Outcome, scenario: Scenario, used: _Usage) -> Load:
    # Turns of the ramp meet less than the full load.
    steady = [sample for sample in outcome.samples if sample.started_s >= scenario.ramp_s] or outcome.samples
    return Load(
        turns=len(outcome.samples),
        errors=outcome.errors,
        messages=outcome.messages,
        turns_per_s=len(outcome.samples) / outcome.wall_s,
        first_event=_latency([sample.first_event_s for sample in steady]),
        first_token=_latency([sample.first_token_s for sample in steady]),
        total=_latency([sample.total_s for sample in steady]),
        client_cpu=outcome.cpu_s / outcome.wall_s,
        provider_cpu=used.provider / outcome.wall_s,
        foreign_cpu=max(0.0, used.machine - used.gateway - used.postgres - used.provider - outcome.cpu_s) / outcome.wall_s,
    )


def _latency(seconds: Sequence[float]) -> Latency:
    ordered = sorted(seconds)
    if not ordered:
        return Latency(float("nan"), float("nan"), float("nan"))
    p50, p95, p99 = (1e3 * ordered[min(len(ordered) - 1, int(part * len(ordered)))] for part in (0.50, 0.95, 0.99))
    return Latency(p50, p95, p99)
