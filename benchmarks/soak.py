"""`python -m benchmarks.soak [--turns N] [--tenants N] [--streams N]`: does one process stay as it is, and each tenant for itself?

One gateway process with 1,000 tenants, each with two providers, credentials and a chain of its own, answers 100,000 short turns. They go
round the tenants, so that a cache of fewer entries than tenants never hits. A session serves ten turns of its tenant and is then deleted:
what is looked for is growth of the process, not of the database (which is not durable here).

Beside them a neighbour posts ten turns a second in every phase: one tenant that is well, one whose primary is silent until its first
token is given up, one whose primary answers 500. Phases with a failing neighbour stand between calm ones, and the others' first tokens
are compared. All turns must complete, the failing neighbours' by their fallback.

Memory is compared between the first calm phase after the warm-up (a fifth of the turns, each tenant twice at least) and the last one.
Exit status 1 when it grew, a neighbour was felt, or a turn did not complete.
"""

import argparse
import asyncio
import re
import secrets
import signal
import statistics
import sys
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass

import aiohttp
import msgspec

from app.store.embedded import start_embedded
from app.store.migrate import upgrade
from benchmarks.gateway import OBJECTS
from benchmarks.processes import Child, Cores, cpu_s, rss_mb, share_cores
from benchmarks.report import table
from benchmarks.soak_load import Load, Seen, Tenant, new_http, tenant
from benchmarks.stand import run_folder, wait_until_ready
from benchmarks.tenants import write_tenants

GROWTH_MB = 10.0
"""How much more resident memory the last phase may have than the first one after the warm-up: 125 bytes for each of 80,000 turns."""
GROWTH_OBJECTS_PER_TURN = 0.1
GROWTH_OBJECTS = 3_000
"""How many more Python objects may be kept at the end than after the warm-up: something of every tenth turn, and a few."""
SLOWER = 1.25
SLOWER_MS = 10.0
"""p95 of the first token beside a failing neighbour may be so many times that beside a healthy one, and so much later."""

CALM, SILENT, FAILING = "calm", "silent neighbour", "failing neighbour"
_PHASES = (CALM, SILENT, CALM, FAILING, CALM, SILENT, CALM, FAILING, CALM)
_FAULTS = {CALM: None, SILENT: "silent", FAILING: "status=500"}
_WARM_UP = 0.2
_PHASE_S = 3.0
"""Shortest length of a phase: some first tokens of the neighbour are given up in it."""
_SAMPLE_S = 0.25
_START_S = 60.0
_SHOWN_CLASSES = 8
_FAILURE = re.compile(r'^gateway_attempt_failures_total\{reason="(\w+)"\} ([\d.]+)$', re.MULTILINE)


@dataclass(frozen=True, slots=True, kw_only=True)
class Options:
    """What the command line asks for."""

    turns: int
    tenants: int
    streams: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Phase:
    """One part of the run. Latencies in ms, memory in MB."""

    name: str
    seen: Seen
    rss_mb: float
    """Median."""
    cpu_ms: float
    """Of the gateway, for each turn, the neighbour's and all that belongs to sessions included."""

    @property
    def turns(self) -> int:
        """Turns that completed, without the neighbour's."""
        return len(self.seen.first_token_s)


@dataclass(frozen=True, slots=True, kw_only=True)
class Kept:
    """What the gateway keeps at rest, after a full garbage collection."""

    objects: dict[str, int]
    """By class."""
    rss_mb: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Report:
    """The whole run."""

    warm_up: Phase
    phases: list[Phase]
    before: Kept
    """After the warm-up."""
    after: Kept
    failures: dict[str, float]
    """Of attempts, by reason."""

    @property
    def turns(self) -> int:
        """After the warm-up."""
        return sum(phase.turns for phase in self.phases)

    def first_token_ms(self, name: str) -> float:
        """p95 of all phases of a kind."""
        return p_ms([second for phase in self.phases if phase.name == name for second in phase.seen.first_token_s], 0.95)


@dataclass(frozen=True, slots=True, kw_only=True)
class Finding:
    """A figure and the highest value that is good."""

    name: str
    value: float
    limit: float
    unit: str

    @property
    def good(self) -> bool:
        """Whether it is."""
        return self.value <= self.limit


@dataclass(frozen=True, slots=True, kw_only=True)
class Ground:
    """The gateway under test, its tenants in the database, and its neighbours by phase."""

    child: Child
    url: str
    admin_key: str
    tenants: list[Tenant]
    neighbours: dict[str, Tenant]


def p_ms(seconds: Sequence[float], part: float) -> float:
    """A percentile in ms."""
    ordered = sorted(seconds)
    return 1e3 * ordered[min(len(ordered) - 1, int(part * len(ordered)))] if ordered else float("nan")


@asynccontextmanager
async def _open(cores: Cores, count: int) -> AsyncIterator[Ground]:
    neighbours = {name: tenant(name.replace(" ", "-"), fault) for name, fault in _FAULTS.items()}
    tenants = [tenant(f"tenant-{number:04}") for number in range(count - len(neighbours))]
    with run_folder() as folder, start_embedded(folder / "postgres", durable=False) as postgres:
        await upgrade(postgres.url)
        simulator = await Child.start("benchmarks.application", "simulate", "--port", "0", log_dir=folder)
        try:
            base_url = (await simulator.hear(_START_S)).decode().split()[-1]
            secret_key, admin_key = secrets.token_hex(32), secrets.token_hex(32)
            await write_tenants(postgres.url, secret_key, [one.spec(base_url) for one in (*neighbours.values(), *tenants)])
            environment = {"DATABASE_URL": postgres.url, "GATEWAY_SECRET_KEY": secret_key, "GATEWAY_ADMIN_KEY": admin_key}
            child = await Child.start("benchmarks.gateway", log_dir=folder, environment=environment, cores=cores.gateway)
            try:
                port = int(await child.hear(_START_S))
                await wait_until_ready(port)
                yield Ground(child=child, url=f"http://127.0.0.1:{port}", admin_key=admin_key, tenants=tenants, neighbours=neighbours)
            finally:
                await child.stop()
        finally:
            await simulator.kill()


async def _phase(ground: Ground, load: Load, name: str, *, turns: int, at_least_s: float) -> Phase:
    samples: list[float] = []
    pid = ground.child.pid
    watching = asyncio.ensure_future(_watch(pid, samples))
    cpu_before = cpu_s(pid)
    try:
        seen = await load.phase(turns, at_least_s, ground.neighbours[name])
    finally:
        watching.cancel()
    done = len(seen.first_token_s) + len(seen.neighbour_s)
    phase = Phase(name=name, seen=seen, rss_mb=statistics.median(samples), cpu_ms=1e3 * (cpu_s(pid) - cpu_before) / max(1, done))
    print(f"  {load.turns} turns, {name}: p95 {p_ms(seen.first_token_s, 0.95):.1f} ms, {phase.rss_mb:.1f} MB", flush=True)
    return phase


async def _watch(pid: int, samples: list[float]) -> None:
    while True:
        samples.append(rss_mb(pid))
        await asyncio.sleep(_SAMPLE_S)


async def _run(options: Options, cores: Cores) -> Report:
    task = asyncio.current_task()
    assert task is not None
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, task.cancel)  # as Ctrl-C does: children are ended first
    async with _open(cores, options.tenants) as ground, new_http() as http:
        load = Load(http, ground.url, ground.tenants, options.streams)
        warm_up_turns = max(int(options.turns * _WARM_UP), 2 * options.tenants)
        warm_up = await _phase(ground, load, CALM, turns=warm_up_turns, at_least_s=0.0)
        before = await _kept(ground)
        each = max(1, options.turns - warm_up_turns) // len(_PHASES)
        phases = [await _phase(ground, load, name, turns=each, at_least_s=_PHASE_S) for name in _PHASES]
        after = await _kept(ground)
        failures = await _failures(http, ground)
    return Report(warm_up=warm_up, phases=phases, before=before, after=after, failures=failures)


async def _kept(ground: Ground) -> Kept:
    await ground.child.say(OBJECTS)
    objects = msgspec.json.decode(await ground.child.hear(_START_S), type=dict[str, int])
    return Kept(objects=objects, rss_mb=rss_mb(ground.child.pid))


async def _failures(http: aiohttp.ClientSession, ground: Ground) -> dict[str, float]:
    async with http.get(f"{ground.url}/metrics", headers={"Authorization": f"Bearer {ground.admin_key}"}) as response:
        response.raise_for_status()
        return {reason: float(count) for reason, count in _FAILURE.findall(await response.text())}


def _findings(report: Report) -> list[Finding]:
    calm_ms = report.first_token_ms(CALM)
    slowest_ms = SLOWER * calm_ms + SLOWER_MS
    grown_mb = report.phases[-1].rss_mb - report.phases[0].rss_mb
    grown = sum(report.after.objects.values()) - sum(report.before.objects.values())
    most = GROWTH_OBJECTS + GROWTH_OBJECTS_PER_TURN * report.turns
    errors = sum(phase.seen.errors for phase in (report.warm_up, *report.phases))
    return [
        Finding(name="resident memory, last phase against first", value=grown_mb, limit=GROWTH_MB, unit="MB"),
        Finding(name="Python objects kept, end against warm-up", value=grown, limit=most, unit=""),
        Finding(name=f"first token, p95, beside the {SILENT}", value=report.first_token_ms(SILENT), limit=slowest_ms, unit="ms"),
        Finding(name=f"first token, p95, beside the {FAILING}", value=report.first_token_ms(FAILING), limit=slowest_ms, unit="ms"),
        Finding(name="turns that did not complete", value=errors, limit=0, unit=""),
        Finding(name="kinds of failure of the neighbours not seen", value=2 - len(report.failures), limit=0, unit=""),
    ]


_PHASE_HEADS = ("phase", "turns", "turns/s", "CPU ms/turn", "first token p50 ms", "p95 ms", "neighbour's p95 ms", "its turns", "RSS MB")


def _phase_row(phase: Phase) -> tuple[str, ...]:
    seen = phase.seen
    return (
        phase.name,
        str(phase.turns),
        f"{phase.turns / seen.wall_s:.0f}",
        f"{phase.cpu_ms:.2f}",
        f"{p_ms(seen.first_token_s, 0.50):.1f}",
        f"{p_ms(seen.first_token_s, 0.95):.1f}",
        f"{p_ms(seen.neighbour_s, 0.95):.1f}",
        str(len(seen.neighbour_s)),
        f"{phase.rss_mb:.1f}",
    )


def _object_rows(report: Report) -> list[tuple[str, ...]]:
    """The classes of our own that are kept most often, and those of anybody that grew most."""
    before, after = report.before.objects, report.after.objects
    ours = sorted((name for name in after if name.startswith("app.")), key=lambda name: -after[name])[:_SHOWN_CLASSES]
    grown = sorted(after, key=lambda name: before.get(name, 0) - after[name])[:_SHOWN_CLASSES]
    return [(name, str(before.get(name, 0)), str(after[name])) for name in dict.fromkeys((*ours, *grown))]


def _tables(report: Report, findings: Sequence[Finding]) -> str:
    failures = ", ".join(f"{reason} {count:.0f}" for reason, count in report.failures.items()) or "none"
    rows = [(one.name, f"{one.value:.1f} {one.unit}".rstrip(), f"{one.limit:.1f}", "good" if one.good else "FAILED") for one in findings]
    return "\n\n".join(
        (
            table(_PHASE_HEADS, [_phase_row(phase) for phase in (report.warm_up, *report.phases)]),
            f"Failed attempts: {failures}",
            f"Resident after a full garbage collection: {report.before.rss_mb:.1f} MB, at the end {report.after.rss_mb:.1f} MB",
            table(("objects kept", "after the warm-up", "at the end"), _object_rows(report)),
            table(("figure", "measured", "at most", ""), rows),
        )
    )


def main() -> int:
    """Run the soak that the command line asks for."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.soak", description="Whether a process stays as it is under many tenants.")
    parser.add_argument("--turns", type=int, default=100_000, help="warm-up included (default: %(default)s)")
    parser.add_argument("--tenants", type=int, default=1_000, help="three neighbours included (default: %(default)s)")
    parser.add_argument("--streams", type=int, default=16, help="turns that run at once (default: %(default)s)")
    arguments = parser.parse_args()
    options = Options(turns=arguments.turns, tenants=arguments.tenants, streams=arguments.streams)
    if options.streams < 1 or options.tenants < options.streams + len(_FAULTS):
        parser.error("there must be more tenants than streams")
    report = asyncio.run(_run(options, share_cores()))
    findings = _findings(report)
    print("\n" + _tables(report, findings))
    for phase in (report.warm_up, *report.phases):
        for message in phase.seen.messages:
            print(f"{phase.name}: {message}", file=sys.stderr)
    return 0 if all(finding.good for finding in findings) else 1


if __name__ == "__main__":
    sys.exit(main())
