"""The run's figures for Prometheus."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Final

from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, InfoMetricFamily, Metric
from prometheus_client.registry import Collector

from minga.dashboard.live_run import LiveRun
from minga.dashboard.model.documents import peer_counts
from minga.training.status.run_status import RunStatus

CONTENT_TYPE: Final = "text/plain; version=0.0.4; charset=utf-8"
MOST_PEERS: Final = 200
"""In a larger swarm no figures by peer are given: each would be a time series of its own."""


@dataclass(frozen=True)
class Figure:
    """What Prometheus reads under one name: a gauge or a counter, with the names of its labels."""

    kind: type[GaugeMetricFamily] | type[CounterMetricFamily]
    meaning: str
    labels: tuple[str, ...] = ()


FIGURES: Final[dict[str, Figure]] = {
    "minga_step": Figure(GaugeMetricFamily, "Global step."),
    "minga_loss": Figure(GaugeMetricFamily, "Training loss, smoothed; absent before the first step."),
    "minga_samples_per_second": Figure(GaugeMetricFamily, "Speed of the swarm while peers compute."),
    "minga_target_batch_size": Figure(GaugeMetricFamily, "Samples of a step."),
    "minga_samples": Figure(CounterMetricFamily, "Samples of all peers."),
    "minga_look_time_seconds": Figure(GaugeMetricFamily, "Unix time of these figures."),
    "minga_peers": Figure(GaugeMetricFamily, "Living peers, by state or role.", ("kind",)),
    "minga_events": Figure(CounterMetricFamily, "What happened, by kind.", ("kind",)),
    "minga_round_seconds": Figure(
        GaugeMetricFamily, "Phases of the last round: compute, wait, communicate, apply.", ("phase",)
    ),
    "minga_round_members": Figure(GaugeMetricFamily, "Members of the last round."),
    "minga_peer_samples_per_second": Figure(GaugeMetricFamily, "Speed of a peer while it computes.", ("peer", "role")),
    "minga_peer_samples": Figure(CounterMetricFamily, "Samples of a peer since it joined.", ("peer",)),
    "minga_peer_sent_bytes": Figure(CounterMetricFamily, "Bytes that a peer sent.", ("peer",)),
    "minga_peer_received_bytes": Figure(CounterMetricFamily, "Bytes that a peer received.", ("peer",)),
}
"""All figures by name, but for `minga_run`, which names the run. To the names of counters Prometheus adds "_total"."""


class RunCollector(Collector):
    """Reads the figures from the last look at the run, whenever Prometheus asks."""

    def __init__(self, run: LiveRun) -> None:
        self._run = run

    def collect(self) -> Iterator[Metric]:
        """All figures; none before the first look."""
        look = self._run.look
        if look is None:
            return
        status = look.status
        yield InfoMetricFamily("minga_run", "The run.", {"name": status.name, "run_id": status.run_id})
        if status.loss is not None:
            yield _figure("minga_loss", {(): status.loss})
        yield _figure("minga_step", {(): status.step})
        yield _figure("minga_samples_per_second", {(): status.samples_per_second})
        yield _figure("minga_target_batch_size", {(): status.target_batch_size})
        yield _figure("minga_samples", {(): status.total_samples})
        yield _figure("minga_look_time_seconds", {(): look.time_s})
        yield _figure("minga_peers", {(kind,): number for kind, number in peer_counts(status).items()})
        yield _figure("minga_events", {(kind,): number for kind, number in self._run.model.counts.items()})
        yield from self._last_round()
        if len(status.peers) <= MOST_PEERS:
            yield from _by_peer(status)

    def _last_round(self) -> Iterator[Metric]:
        rounds = list(self._run.model.journals["rounds"])
        if not rounds:
            return
        phases = ("compute", "wait", "communicate", "apply")
        yield _figure("minga_round_seconds", {(phase,): rounds[-1].get(f"{phase}_s") or 0.0 for phase in phases})
        yield _figure("minga_round_members", {(): rounds[-1].get("members") or 0})


def _by_peer(status: RunStatus) -> Iterator[Metric]:
    peers = status.peers
    yield _figure(
        "minga_peer_samples_per_second", {(each.peer_id, each.role): each.samples_per_second for each in peers}
    )
    for name, totals in (
        ("minga_peer_samples", {each.peer_id: each.total_samples for each in peers}),
        ("minga_peer_sent_bytes", {each.peer_id: each.bytes_sent for each in peers}),
        ("minga_peer_received_bytes", {each.peer_id: each.bytes_received for each in peers}),
    ):
        yield _figure(name, {(peer,): total for peer, total in totals.items() if total is not None})


def _figure(name: str, values: Mapping[tuple[str, ...], float]) -> Metric:
    """A figure with its values, by those of its labels."""
    figure = FIGURES[name]
    family = figure.kind(name, figure.meaning, labels=figure.labels)
    for labels, value in values.items():
        family.add_metric(labels, value)
    return family


def registry_of(run: LiveRun) -> CollectorRegistry:
    """A registry with the figures of this run alone."""
    registry = CollectorRegistry(auto_describe=False)
    registry.register(RunCollector(run))
    return registry


def metrics_text(registry: CollectorRegistry) -> bytes:
    """The figures in the text format of Prometheus."""
    return generate_latest(registry)
