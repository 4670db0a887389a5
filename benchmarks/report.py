"""The figures of a run as tables and as JSON, beside what they should be."""

import os
import platform
import statistics
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec

from benchmarks.measure import DISTURBED, Latency, Result

_BUSY = 0.9
"""A core that is used this much has become the limit itself."""


@dataclass(frozen=True, slots=True)
class Target:
    """A figure and the highest value that is good."""

    name: str
    scenario: str
    figure: Callable[[Result], float]
    limit: float
    goal: float
    unit: str
    against: str | None = None
    """Another scenario, by whose figure this one's is divided."""

    def value(self, results: Mapping[str, Result]) -> float | None:
        """The figure; ``None`` when a scenario was not run."""
        result = results.get(self.scenario)
        other = None if self.against is None else results.get(self.against)
        if result is None or (self.against is not None and other is None):
            return None
        return self.figure(result) if other is None else self.figure(result) / self.figure(other)


def _cpu_ms(result: Result) -> float:
    return result.cost(lambda cost: cost.cpu_ms_per_turn)


def _cpu_us(result: Result) -> float:
    return result.cost(lambda cost: cost.cpu_us_per_token)


def _first_token(result: Result) -> Latency:
    return result.added(lambda load: load.first_token)


def _whole_first_token(result: Result) -> float:
    """Milliseconds, of the gateway's alone: what it adds and what the provider takes."""
    return statistics.median(cost.load.first_token.p50 for cost in result.through)


def _growth_mb(result: Result) -> float:
    """Of the first round: later ones find the memory of the one before."""
    return result.through[0].rss_growth_mb


TARGETS: Sequence[Target] = (
    Target("gateway CPU of a turn at 16 streams", "burst-16", _cpu_ms, 3.0, 1.5, "ms"),
    Target("first token later, p50, at 1 stream", "burst-1", lambda result: _first_token(result).p50, 3.0, 3.0, "ms"),
    Target("first token later, p95, at 200 paced streams", "paced-200", lambda result: _first_token(result).p95, 15.0, 15.0, "ms"),
    Target("first token later, p95, at 1,000 paced streams", "paced-1000", lambda result: _first_token(result).p95, 100.0, 50.0, "ms"),
    Target("first token, p50, with 10,000 messages to 100", "session-10000", _whole_first_token, 1.2, 1.2, "x", "session-100"),
    Target("gateway CPU of a paced token at 200 streams", "paced-200", _cpu_us, 45.0, 45.0, "us"),
    Target("memory of 1,000 open streams", "paced-1000", _growth_mb, 150.0, 100.0, "MB"),
    Target("memory of 1,000 open streams, TLS to the provider", "tls-1000", _growth_mb, 150.0, 100.0, "MB"),
)


def tables(results: Sequence[Result]) -> str:
    """What a person reads."""
    parts = [
        table(_COST_HEADS, [_cost_row(result) for result in results]),
        "Parts of a core while the turns ran through the gateway:",
        table(_BUSY_HEADS, [_busy_row(result) for result in results]),
    ]
    compared = [result for result in results if result.direct]
    if compared:
        parts += [
            "Later than direct, ms (p50 / p95 / p99), and ratios through / direct:",
            table(_LATENCY_HEADS, [_latency_row(result) for result in compared]),
        ]
    by_name = {result.scenario.name: result for result in results}
    rows = [_target_row(target, value) for target in TARGETS if (value := target.value(by_name)) is not None]
    if rows:
        parts += ["Targets:", table(_TARGET_HEADS, rows)]
    return "\n\n".join(parts)


def document(results: Sequence[Result], machine: Mapping[str, str]) -> bytes:
    """The same and every round, for programs."""
    by_name = {result.scenario.name: result for result in results}
    body: dict[str, Any] = {
        "machine": machine,
        "targets": [
            {
                "name": target.name,
                "value": value,
                "limit": target.limit,
                "goal": target.goal,
                "unit": target.unit,
            }
            for target in TARGETS
            if (value := target.value(by_name)) is not None
        ],
        "scenarios": {name: _summary(result) for name, result in by_name.items()},
    }
    return msgspec.json.format(msgspec.json.encode(body), indent=1)


def machine(cores: str) -> dict[str, str]:
    """Where the figures come from."""
    model = ""
    info = Path("/proc/cpuinfo")
    if info.exists():
        model = next((line.partition(":")[2].strip() for line in info.read_text().splitlines() if line.startswith("model name")), "")
    return {
        "processor": f"{os.cpu_count()} x {model}",
        "system": platform.platform(),
        "python": platform.python_version(),
        "cores": cores,
        "load_before": " ".join(f"{load:.2f}" for load in os.getloadavg()),
    }


def _summary(result: Result) -> dict[str, Any]:
    figures = {
        "cpu_ms_per_turn": _cpu_ms(result),
        "cpu_us_per_token": _cpu_us(result),
        "postgres_ms_per_turn": result.cost(lambda cost: cost.postgres_ms_per_turn),
        "rss_growth_mb": _growth_mb(result),
        "rss_total_mb": result.through[0].rss_total_mb,
        "turns_per_s": result.seen(lambda load: load.turns_per_s)[1],
        "first_event_added_ms": result.added(lambda load: load.first_event),
        "first_token_added_ms": _first_token(result),
    }
    return {"errors": result.errors, "medians": figures, "rounds": result}


_COST_HEADS = (
    "scenario",
    "turns",
    "errors",
    "turns/s",
    "direct",
    "CPU ms/turn",
    "us/token",
    "Postgres ms/turn",
    "RSS +MB",
    "kB/stream",
    "RSS MB",
)


def _cost_row(result: Result) -> tuple[str, ...]:
    direct, through = result.seen(lambda load: load.turns_per_s)
    return (
        result.scenario.name,
        str(sum(cost.load.turns for cost in result.through)),
        str(result.errors),
        f"{through:.0f}",
        f"{direct:.0f}",
        f"{_cpu_ms(result):.2f}",
        f"{_cpu_us(result):.1f}",
        f"{result.cost(lambda cost: cost.postgres_ms_per_turn):.2f}",
        f"{_growth_mb(result):.1f}",
        f"{_growth_mb(result) / result.scenario.streams * 1e3:.0f}",
        f"{result.through[0].rss_total_mb:.0f}",
    )


_BUSY_HEADS = ("scenario", "gateway", "client", "provider", "Postgres", "strangers", "client + provider + Postgres")


def _busy_row(result: Result) -> tuple[str, ...]:
    gateway = result.cost(lambda cost: cost.gateway_cpu)
    client = result.cost(lambda cost: cost.load.client_cpu)
    provider = result.cost(lambda cost: cost.load.provider_cpu)
    postgres = result.cost(lambda cost: cost.postgres_cpu)
    strangers = result.cost(lambda cost: cost.load.foreign_cpu)
    others = client + provider + postgres
    return (
        result.scenario.name,
        f"{gateway:.0%}",
        f"{client:.0%}",
        f"{provider:.0%}",
        f"{postgres:.0%}",
        f"{strangers:.0%}" + (" (disturbed)" if strangers > DISTURBED else ""),
        f"{others:.0%}" + (" (full: they are the limit as well)" if others > _BUSY else ""),
    )


_LATENCY_HEADS = ("scenario", "direct first token", "first event later", "first token later", "first token", "whole turn", "turns/s")


def _latency_row(result: Result) -> tuple[str, ...]:
    token = result.seen(lambda load: load.first_token.p50)
    total = result.seen(lambda load: load.total.p50)
    rate = result.seen(lambda load: load.turns_per_s)
    return (
        result.scenario.name,
        f"{token[0]:.1f}",
        _three(result.added(lambda load: load.first_event)),
        _three(_first_token(result)),
        f"x {token[1] / token[0]:.2f}",
        f"x {total[1] / total[0]:.2f}",
        f"x {rate[1] / rate[0]:.2f}",
    )


def _three(latency: Latency) -> str:
    return f"{latency.p50:.1f} / {latency.p95:.1f} / {latency.p99:.1f}"


_TARGET_HEADS = ("figure", "measured", "at most", "goal", "")


def _target_row(target: Target, value: float) -> tuple[str, ...]:
    verdict = "reached" if value <= target.limit else "MISSED"
    return (target.name, f"{value:.2f} {target.unit}", f"{target.limit:g}", f"{target.goal:g}", verdict)


def table(heads: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """Columns of text: the first one to the left, the others to the right."""
    widths = [max(map(len, column)) for column in zip(heads, *rows, strict=True)]
    lines = [heads, ["-" * width for width in widths], *rows]
    return "\n".join(_line(line, widths) for line in lines)


def _line(cells: Sequence[str], widths: Sequence[int]) -> str:
    first, *others = zip(cells, widths, strict=True)
    return "  ".join([first[0].ljust(first[1]), *(cell.rjust(width) for cell, width in others)]).rstrip()
