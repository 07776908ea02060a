"""Works on a closed window: prepare it (embed, probe), then plan it (group, order, encode)."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence, Set
from dataclasses import dataclass, replace
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from carpool.clock import Clock
from carpool.disk.centroids import probe
from carpool.embedding import Embedder
from carpool.loop.ends import one_by_one
from carpool.loop.stage import Operation, Sink
from carpool.telemetry.metrics import Metrics
from grouper.admission import Admitted, IndexFacts
from grouper.embed import embed_texts
from grouper.plan.emit import Header, PlannedGroup, plan_records
from grouper.plan.horizon import Wants, plan_horizon, wants_of
from grouper.plan.plan_groups import Groups
from grouper.plan.window import Window
from grouper.records import expired, group_done, grouped_query, groups_topic
from grouper.tracing import plan_window
from schemas.errors import RecordError
from schemas.record import ClusterId

GROUP_BYTES_MAX = 4 * 1024 * 1024
"""Encoded bytes at which a group is cut into several records, below what the topic takes. A larger
query gets a record of its own.
"""

HORIZON_BYTES_MAX = GROUP_BYTES_MAX // 4
"""The most bytes of a horizon in a record."""

GroupPlanner = Callable[[Sequence[Sequence[ClusterId]], Sequence[int]], Groups]
"""`plan_groups` with its settings: the clusters of the queries of a window, and the positions of
those with a deadline.
"""

Ahead = Callable[[], Sequence["PreparedWindow"]]
"""Returns the prepared windows that leave next, in order."""


class LiveQueries(Protocol):
    """The units of closed windows that are neither revoked nor expired. Thread-safe."""

    def has(self, unit_id: int) -> bool:
        """Returns whether a unit is neither revoked nor expired."""
        ...

    def take_out(self, unit_id: int) -> bool:
        """Removes a unit, which the caller then ends; False if it was removed before."""
        ...


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class Prepared:
    """A query with its `searches`: a row, (dim,) float32, L2-normalised, and C(q) of each.

    A query has one; a step of a workflow may have several.
    """

    query: Admitted
    searches: tuple[tuple[NDArray[np.float32], tuple[ClusterId, ...]], ...]

    @property
    def clusters(self) -> tuple[ClusterId, ...]:
        """The clusters of all searches, each once."""
        if len(self.searches) == 1:
            return self.searches[0][1]
        return tuple(dict.fromkeys(one for _, clusters in self.searches for one in clusters))


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class PreparedWindow:
    """A window whose queries are embedded and probed, without those that ended. May be empty."""

    window: Window
    queries: tuple[Prepared, ...]
    wants: Wants
    encode_us: int
    prepared_us: int

    def only(self, unit_ids: Set[int]) -> PreparedWindow:
        """Returns this window with the queries of these units alone: the rest was revoked."""
        queries = tuple(each for each in self.queries if each.query.unit.id in unit_ids)
        if len(queries) == len(self.queries):
            return self
        return replace(self, queries=queries, wants=wants_of(each.clusters for each in queries))


class WindowWork:
    """Prepares windows and plans them, and hands their groups to the sink.

    `prepare` and `plan` may run on two threads at once, one thread each: they share no state.
    """

    def __init__(
        self,
        *,
        facts: IndexFacts,
        centroids: NDArray[np.float32],
        embedder: Embedder,
        group: GroupPlanner,
        grouper: str,
        clock: Clock,
        metrics: Metrics,
        lanes: int = 1,
        needs_horizon: bool = True,
    ) -> None:
        """`centroids`: (nlist, dim) float32, row-normalised. `grouper` names this process in the
        groups it writes. `lanes`: partitions of the groups' topics. `needs_horizon`: whether
        searchers use one.
        """
        self.facts = facts
        self.needs_horizon = needs_horizon
        self._centroids = centroids
        self._embedder = embedder
        self._group = group
        self._grouper = grouper
        self._clock = clock
        self._metrics = metrics
        self._lanes = lanes
        self._sequences: Counter[tuple[str, int]] = Counter()  # by topic and lane

    def prepare(
        self, window: Window, queries: Sequence[Admitted], sink: Sink, live: LiveQueries
    ) -> PreparedWindow:
        """Embeds and probes in one batch; ends expired and unusable queries. Blocks for the model.

        Raises `ConfigError` when the model is broken.
        """
        self._metrics.grouper.window_queries.observe(len(queries))
        started_us = self._clock.now_us()
        prepared: list[Prepared] = []

        def add(some: Sequence[Admitted]) -> None:
            vectors = self._embed(self._in_time(some, sink, live), sink)
            prepared.extend(self._probe(vectors))

        one_by_one(queries, add, lambda query, error: _charge(query, error, sink, live))
        encoded_us = self._clock.now_us()
        return PreparedWindow(
            window=window,
            queries=tuple(prepared),
            wants=wants_of(each.clusters for each in prepared),
            encode_us=encoded_us - started_us,
            prepared_us=encoded_us,
        )

    def plan(self, prepared: PreparedWindow, ahead: Ahead, sink: Sink, live: LiveQueries) -> None:
        """Ends every live query of `prepared`: in a group, or `expired`. Blocks for milliseconds.

        `ahead` is called after grouping: the windows that it returns are the horizon.
        """
        one_by_one(
            prepared.queries,
            lambda some: self._plan(replace(prepared, queries=tuple(some)), ahead, sink, live),
            lambda each, error: _charge(each.query, error, sink, live),
        )

    def _plan(self, prepared: PreparedWindow, ahead: Ahead, sink: Sink, live: LiveQueries) -> None:
        in_time = {
            query.unit.id
            for query in self._in_time([each.query for each in prepared.queries], sink, live)
        }
        queries = [each for each in prepared.queries if each.query.unit.id in in_time]
        if not queries:
            return
        groups = self._group(
            [each.clusters for each in queries],
            [at for at, each in enumerate(queries) if each.query.deadline_us is not None],
        )
        horizon = plan_horizon([each.wants for each in ahead()], bytes_max=HORIZON_BYTES_MAX)
        grouped_us = self._clock.now_us()
        topic = groups_topic(queries[0].query.unit.source).name
        spent_us = {"encode": prepared.encode_us, "group": grouped_us - prepared.prepared_us}
        planned = plan_records(
            groups,
            [
                grouped_query(each.query, each.searches, prepared.window, spent_us)
                for each in queries
            ],
            self._header(prepared.window),
            first_sequences=[self._sequences[topic, lane] for lane in range(self._lanes)],
            group_bytes_max=GROUP_BYTES_MAX,
            horizon=horizon,
        )
        self._sequences.update((topic, record.group.lane) for record in planned)
        members = [each.query for each in queries]
        operations: tuple[Operation, ...] = (
            plan_window(prepared.window, members, len(planned), self._clock.now_us()),
        )
        for record in planned:
            sink.done(
                replace(group_done(record, members, self._clock.now_us()), operations=operations)
            )
            operations = ()  # the window's operations are reported once
        for record in planned:
            self._count(record)

    def _in_time(
        self, queries: Sequence[Admitted], sink: Sink, live: LiveQueries
    ) -> list[Admitted]:
        """The live queries that are not expired; answers the expired ones."""
        now_us = self._clock.now_us()
        in_time = []
        for query in queries:
            if not query.is_expired(now_us):
                if live.has(query.unit.id):
                    in_time.append(query)
                continue
            done = expired(query, now_us)
            if live.take_out(query.unit.id):
                sink.done(done)
        return in_time

    def _embed(
        self, queries: Sequence[Admitted], sink: Sink
    ) -> list[tuple[Admitted, list[NDArray[np.float32]]]]:
        """Returns each query with a (dim,) float32 vector a search, without those that failed."""
        texts = [(query.unit, text) for query in queries for text in query.texts]
        embedded = embed_texts(self._embedder, [text for _, text in texts])
        vectors: dict[int, list[NDArray[np.float32]]] = {
            query.unit.id: [] if query.vector is None else [query.vector] for query in queries
        }
        for (unit, _), found in zip(texts, embedded, strict=True):
            if unit.id not in vectors:
                continue  # another of its texts failed
            if not isinstance(found, str):
                vectors[unit.id].append(found)
                continue
            del vectors[unit.id]
            message = (
                f"text: the embedding model works, but not on this text: {found[:500]}; "
                "send another text, or a vector"
            )
            sink.refuse(
                unit,
                RecordError(
                    "processing_failed", message, field="$.text", query_id=unit.record.query_id
                ),
            )
        return [(query, vectors[query.unit.id]) for query in queries if query.unit.id in vectors]

    def _probe(
        self, queries: Sequence[tuple[Admitted, list[NDArray[np.float32]]]]
    ) -> list[Prepared]:
        """Returns each query with its clusters."""
        if not queries:
            return []
        rows = np.stack([row for _, own in queries for row in own])
        nprobe_max = max(query.nprobe for query, _ in queries)
        probes = iter(probe(self._centroids, rows, nprobe_max).tolist())
        return [
            Prepared(
                query=query,
                searches=tuple(
                    (row, tuple(map(ClusterId, next(probes)[: query.nprobe]))) for row in own
                ),
            )
            for query, own in queries
        ]

    def _header(self, window: Window) -> Header:
        return Header(
            index_version=self.facts.index_version,
            centroids_fingerprint=self.facts.centroids_fingerprint,
            embedding_model=self.facts.embedding_model,
            grouper=self._grouper,
            window_id=window.window_id,
        )

    def _count(self, planned: PlannedGroup) -> None:
        queries = planned.group.queries
        self._metrics.grouper.group_queries.observe(len(queries))
        for query in queries:
            for stage, took_us in query.timings_us.items():
                self._metrics.loop.stage_seconds.labels(stage=stage).observe(took_us / 1_000_000)


def _charge(query: Admitted, error: Exception, sink: Sink, live: LiveQueries) -> None:
    live.take_out(query.unit.id)
    sink.charge(query.unit.owed, error)
