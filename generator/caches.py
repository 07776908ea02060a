"""Follows the KV events of all LLM servers on the event loop, and writes their metrics."""

from __future__ import annotations

from collections.abc import Callable, Coroutine, Sequence
from functools import partial
from typing import Any

import structlog

from carpool.telemetry.metrics import GeneratorMetrics
from generator.llm.kv_events import KvEvents, can_follow
from generator.plan.kv_tree import KvTree, KvTreeEvent

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
        self._counted: dict[tuple[int, str], int] = {}
        self._servers = tuple(
            KvEvents(endpoint, partial(on_event, place), partial(self._unreadable, place))
            for place, endpoint in enumerate(endpoints)
        )
        for place in range(len(endpoints)):
            self._count(place, "unreadable", 0)
            self.measure(place, KvTree())

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
        """Writes the metrics of a tree."""
        label = self._labels[server]
        self._metrics.kv_known.labels(server=label).set(not tree.is_blind)
        self._metrics.kv_blocks.labels(server=label).set(len(tree))
        self._count(server, "replayed", tree.replays)
        self._count(server, "emptied", tree.emptied)
        self._count(server, "agreed", tree.checked - tree.disagreed)
        self._count(server, "more", tree.disagreed - tree.overestimated)
        self._count(server, "less", tree.overestimated)

    def _unreadable(self, server: int) -> None:
        self._count(server, "unreadable", self._counted[(server, "unreadable")] + 1)

    def _count(self, server: int, what: str, total: int) -> None:
        counter = self._metrics.kv_events.labels(server=self._labels[server], event=what)
        counter.inc(total - self._counted.get((server, what), 0))
        self._counted[(server, what)] = total
