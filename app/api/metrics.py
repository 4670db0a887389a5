"""Prometheus metrics of one process: no tenant, no key, no id is ever a label.

Every application has a registry of its own. With several workers each answers for itself, as replicas do.
"""

from collections.abc import Callable, Iterator

from prometheus_client import CollectorRegistry, Counter, Histogram, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector
from typing_extensions import override

from app.turns.counters import Counters

CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"
_METHODS = frozenset({"GET", "HEAD", "POST", "PUT", "PATCH", "DELETE", "OPTIONS"})
_BUCKETS_S = (0.002, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 300.0)


class HttpMetrics:
    """Counts requests and how long they took; a stream counts when it ends."""

    def __init__(self, counters: Counters, cooling: Callable[[], int]) -> None:
        self._registry = CollectorRegistry()
        self._registry.register(_TurnCollector(counters, cooling))
        labels = ("method", "route", "status")
        self._requests = Counter("gateway_http_requests", "HTTP requests.", labels, registry=self._registry)
        self._durations = Histogram(
            "gateway_http_request_duration_seconds",
            "From a request's head to the end of its response.",
            ("method", "route"),
            buckets=_BUCKETS_S,
            registry=self._registry,
        )
        # labels() takes a lock and builds the key anew each time; there are only a few dozen combinations.
        self._children: dict[tuple[str, str, int], tuple[Counter, Histogram]] = {}

    def record(self, method: str, route: str | None, status: int, duration_s: float) -> None:
        """One request is over. ``route`` is the path template, ``None`` when no route has the path."""
        key = (method if method in _METHODS else "OTHER", route or "none", status // 100)
        pair = self._children.get(key)
        if pair is None:
            pair = (self._requests.labels(key[0], key[1], f"{key[2]}xx"), self._durations.labels(key[0], key[1]))
            self._children[key] = pair
        pair[0].inc()
        pair[1].observe(duration_s)

    def render(self) -> bytes:
        """Everything in Prometheus' text format."""
        return generate_latest(self._registry)


class _TurnCollector(Collector):
    def __init__(self, counters: Counters, cooling: Callable[[], int]) -> None:
        self._counters = counters
        self._cooling = cooling

    @override
    def collect(self) -> Iterator[Metric]:
        counters = self._counters
        yield GaugeMetricFamily("gateway_turns_active", "Turns that run in this process now.", value=counters.active)
        yield CounterMetricFamily("gateway_turns_queued", "Turns that had to wait.", value=counters.queued)
        yield CounterMetricFamily("gateway_turns_started", "Turns that began to run here.", value=counters.started)
        ended = CounterMetricFamily("gateway_turns_ended", "Turns that ended here.", labels=("state", "reason"))
        for (state, reason), count in sorted(counters.ended.items()):
            ended.add_metric((state, reason), count)
        yield ended
        failures = CounterMetricFamily("gateway_attempt_failures", "Failed attempts of model calls.", labels=("reason",))
        for reason, count in sorted(counters.attempt_failures.items()):
            failures.add_metric((reason,), count)
        yield failures
        yield GaugeMetricFamily("gateway_cooldowns_active", "Keys, models and routes that are left alone now.", value=self._cooling())
        throttled = CounterMetricFamily("gateway_calls_throttled", "Model calls held back by a limit.", labels=("limit", "outcome"))
        for (limit, outcome), count in sorted(counters.throttled.items()):
            throttled.add_metric((limit, outcome), count)
        yield throttled
        compactions = CounterMetricFamily("gateway_compactions", "Contexts made shorter, or not.", labels=("reason", "outcome"))
        for (reason, outcome), count in sorted(counters.compactions.items()):
            compactions.add_metric((reason, outcome), count)
        yield compactions
        refused = CounterMetricFamily("gateway_quota_refusals", "Turns refused by a quota of their tenant.", labels=("policy",))
        for policy, count in sorted(counters.quota_refusals.items()):
            refused.add_metric((policy,), count)
        yield refused
        yield CounterMetricFamily("gateway_turns_lost", "Turns that another replica took over.", value=counters.lost)
        yield CounterMetricFamily("gateway_turns_recovered", "Turns of lost replicas that were ended here.", value=counters.recovered)
        yield CounterMetricFamily("gateway_events_written", "Events stored.", value=counters.events_written)
        yield CounterMetricFamily("gateway_delta_batches", "Writes of delta batches.", value=counters.delta_batches)
        yield GaugeMetricFamily("gateway_followers", "Streams that are open now.", value=counters.followers)
