"""The run's figures for Prometheus."""

from __future__ import annotations

from collections.abc import Iterator
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
        yield GaugeMetricFamily("minga_step", "Global step.", status.step)
        if status.loss is not None:
            yield GaugeMetricFamily("minga_loss", "Training loss, smoothed.", status.loss)
        yield GaugeMetricFamily("minga_samples_per_second", "Speed of the swarm.", status.samples_per_second)
        yield GaugeMetricFamily("minga_target_batch_size", "Samples of a step.", status.target_batch_size)
        total = max(self._run.model.total_samples, status.total_samples)
        yield CounterMetricFamily("minga_samples", "Samples of all peers.", total)
        yield GaugeMetricFamily("minga_look_time_seconds", "Unix time of these figures.", look.time_s)
        yield self._peers(status)
        yield self._events()
        yield from self._last_round()
        if len(status.peers) <= MOST_PEERS:
            yield from _by_peer(status)

    def _peers(self, status: RunStatus) -> Metric:
        family = GaugeMetricFamily("minga_peers", "Living peers, by state or role.", labels=["kind"])
        for kind, number in peer_counts(status).items():
            family.add_metric([kind], number)
        return family

    def _events(self) -> Metric:
        family = CounterMetricFamily("minga_events", "What happened, by kind.", labels=["kind"])
        for kind, number in self._run.model.counts.items():
            family.add_metric([kind], number)
        return family

    def _last_round(self) -> Iterator[Metric]:
        rounds = list(self._run.model.journals["rounds"])
        if not rounds:
            return
        family = GaugeMetricFamily("minga_round_seconds", "Phases of the last round.", labels=["phase"])
        for phase in ("compute", "wait", "communicate", "apply"):
            family.add_metric([phase], rounds[-1].get(f"{phase}_s") or 0.0)
        yield family
        yield GaugeMetricFamily("minga_round_members", "Members of the last round.", rounds[-1].get("members") or 0)


def _by_peer(status: RunStatus) -> Iterator[Metric]:
    speed = GaugeMetricFamily("minga_peer_samples_per_second", "Speed of a peer.", labels=["peer", "role"])
    samples = CounterMetricFamily("minga_peer_samples", "Samples of a peer since it joined.", labels=["peer"])
    sent = CounterMetricFamily("minga_peer_sent_bytes", "Bytes that a peer sent.", labels=["peer"])
    received = CounterMetricFamily("minga_peer_received_bytes", "Bytes that a peer received.", labels=["peer"])
    for peer in status.peers:
        speed.add_metric([peer.peer_id, peer.role], peer.samples_per_second)
        samples.add_metric([peer.peer_id], peer.total_samples)
        sent.add_metric([peer.peer_id], peer.bytes_sent)
        received.add_metric([peer.peer_id], peer.bytes_received)
    yield from (speed, samples, sent, received)


def registry_of(run: LiveRun) -> CollectorRegistry:
    """A registry with the figures of this run alone."""
    registry = CollectorRegistry(auto_describe=False)
    registry.register(RunCollector(run))
    return registry


def metrics_text(registry: CollectorRegistry) -> bytes:
    """The figures in the text format of Prometheus."""
    return generate_latest(registry)
