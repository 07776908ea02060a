"""Follows the KV events of all LLM servers on the event loop, and writes their metrics."""

from __future__ import annotations

from collections.abc import Callable, Coroutine, Sequence
from functools import partial
from typing import Any, get_args

import structlog
from prometheus_client import Counter

from carpool.telemetry.metrics import GeneratorMetrics
from generator.llm.kv_events import KvEvents, can_follow
from generator.plan.kv_tree import KvCount, KvTree, KvTreeEvent

log = structlog.get_logger()


class ServerCaches:
    """Follows each server. For the event loop.

    `on_event` gets each event with the position of its server. `labels`: the servers in metrics.
    """

    def __init__(
        self,
        endpoints: Sequence[str],
        labels: Sequence[str],
        on_event: Callable[[int, KvTreeEvent], None],
        metrics: GeneratorMetrics,
    ) -> None:
        self._metrics = metrics
        self._labels = labels
        self._servers = tuple(
            KvEvents(endpoint, partial(on_event, place), self._event(place, "unreadable").inc)
            for place, endpoint in enumerate(endpoints)
        )
        for place in range(len(endpoints)):
            self.measure(place, KvTree())  # all at 0, so that alerts see a rise

    def start(self, run: Callable[[Coroutine[Any, Any, None]], object]) -> None:
        """Starts to follow, by tasks that `run` starts."""
        if self._servers and not can_follow():
            log.warning(
                "llm.kv_events needs ZeroMQ, which is not installed: pip install pyzmq. Prompts "
                "are sent in the order of arrival"
            )
            return
        for server in self._servers:
            run(server.run())

    def replay(self, server: int, first: int) -> None:
        """Asks a server for all batches from number `first` on."""
        self._servers[server].replay(first)

    def measure(self, server: int, tree: KvTree) -> None:
        """Writes the metrics of a tree, and counts its events."""
        label = self._labels[server]
        self._metrics.kv_known.labels(server=label).set(not tree.is_blind)
        self._metrics.kv_blocks.labels(server=label).set(len(tree))
        for what in get_args(KvCount):
            self._event(server, what).inc(tree.counts.pop(what, 0))

    def _event(self, server: int, what: str) -> Counter:
        return self._metrics.kv_events.labels(server=self._labels[server], event=what)
