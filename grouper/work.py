"""What is done with a closed window: embed, probe, plan, encode. Arithmetic and records; the threads are the service's."""

from __future__ import annotations

import uuid
from collections.abc import Callable, Sequence

import msgspec
import numpy as np
from numpy.typing import NDArray

from carpool.clock import Clock
from carpool.disk.centroids import probe
from carpool.embedding import Embedder
from carpool.kafka.stage import Done, Output, Sink
from carpool.telemetry.metrics import Metrics
from grouper.admission import Admitted, IndexFacts
from grouper.embed import embed_texts
from grouper.plan.emit import Header, PlannedGroup, plan_records
from grouper.plan.jaccard import jaccard_matrix
from grouper.plan.policies import GroupingPolicy
from grouper.plan.window import Window
from schemas.answer import unanswered
from schemas.codec import encode
from schemas.errors import RecordError
from schemas.group import GroupedQuery
from schemas.record import ClusterId, Source
from schemas.topics import ANSWERS, GROUPS

EVENT_SOURCE = "carpool/grouper"
LANE = 0


class WindowWork:
    """Plans windows, one after the other, and hands their groups to the sink. For one thread."""

    def __init__(
        self,
        *,
        facts: IndexFacts,
        centroids: NDArray[np.float32],
        embedder: Embedder,
        policy: GroupingPolicy,
        grouper: str,
        lane_count: int,
        group_bytes_max: int,
        clock: Clock,
        metrics: Metrics,
    ) -> None:
        """`centroids`: (nlist, dim) float32, row-normalised. `grouper` names this process in the groups it writes."""
        self.facts = facts
        self._centroids = centroids
        self._embedder = embedder
        self._policy = policy
        self._grouper = grouper
        self._lane_count = lane_count
        self._group_bytes_max = group_bytes_max
        self._clock = clock
        self._metrics = metrics
        self._sequence = 0

    def run(self, window: Window, queries: Sequence[Admitted], sink: Sink, is_live: Callable[[int], bool]) -> None:
        """Ends every query of `window` that is still live: in a group, refused, or answered `expired`. Blocks.

        `is_live` says whether a unit id was not revoked meanwhile. Raises `ConfigError` when the model is broken.
        """
        self._metrics.window_queries.observe(len(queries))
        started_us = self._clock.now_us()
        vectors = self._embed(self._in_time(queries, sink, is_live), sink)
        encoded_us = self._clock.now_us()
        in_time = self._in_time([query for query, _ in vectors], sink, is_live)
        if not in_time:
            return
        kept = {query.unit.id for query in in_time}
        rows = np.stack([row for query, row in vectors if query.unit.id in kept])
        clusters = self._probe(in_time, rows)
        groups = self._policy.group(jaccard_matrix(clusters))
        grouped_us = self._clock.now_us()
        spent_us = {"encode": encoded_us - started_us, "group": grouped_us - encoded_us}
        planned = plan_records(
            groups,
            [
                grouped_query(query, row, of_query, window, spent_us)
                for query, row, of_query in zip(in_time, rows, clusters, strict=True)
            ],
            self._header(window),
            first_sequence=self._sequence,
            group_bytes_max=self._group_bytes_max,
        )
        self._sequence += len(planned)
        for record in planned:
            self._count(record)
            sink.done(self._encode(record, in_time))

    def _in_time(self, queries: Sequence[Admitted], sink: Sink, is_live: Callable[[int], bool]) -> list[Admitted]:
        """Those that are live and not expired; the expired are answered."""
        now_us = self._clock.now_us()
        in_time = []
        for query in queries:
            if not is_live(query.unit.id):
                continue
            if query.is_expired(now_us):
                self._metrics.answers.labels(stage="grouper", status="expired").inc()
                sink.done(expired(query, now_us))
            else:
                in_time.append(query)
        return in_time

    def _embed(self, queries: Sequence[Admitted], sink: Sink) -> list[tuple[Admitted, NDArray[np.float32]]]:
        """Each query with its (dim,) float32 vector, in order, less those whose text could not be embedded."""
        texts = [(query, query.unit.record.text or "") for query in queries if query.vector is None]
        embedded = embed_texts(self._embedder, [text for _, text in texts])
        vectors = {texts[position][0].unit.id: vector for position, vector in embedded.vectors.items()}
        for position, why in embedded.failures.items():
            unit = texts[position][0].unit
            message = (
                f"text: the embedding model works, but not on this text: {why[:500]}; send another text, or a vector"
            )
            sink.refuse(unit, RecordError("processing_failed", message, field="$.text", query_id=unit.record.query_id))
        found = ((query, vectors.get(query.unit.id, query.vector)) for query in queries)
        return [(query, vector) for query, vector in found if vector is not None]

    def _probe(self, queries: Sequence[Admitted], rows: NDArray[np.float32]) -> list[tuple[ClusterId, ...]]:
        """C(q) of each query, nearest first, as many as it asked for."""
        probes = probe(self._centroids, rows, max(query.nprobe for query in queries)).tolist()
        return [tuple(map(ClusterId, row[: query.nprobe])) for query, row in zip(queries, probes, strict=True)]

    def _header(self, window: Window) -> Header:
        return Header(
            index_version=self.facts.index_version,
            centroids_fingerprint=self.facts.centroids_fingerprint,
            embedding_model=self.facts.embedding_model,
            grouper=self._grouper,
            window_id=window.window_id,
            lane=LANE,
            lane_count=self._lane_count,
        )

    def _encode(self, planned: PlannedGroup, queries: Sequence[Admitted]) -> Done:
        group = planned.group
        value, headers = encode(
            group,
            event_id=group_event_id([query.source for query in group.queries]),
            source=EVENT_SOURCE,
            time_us=self._clock.now_us(),
        )
        return Done(
            parts=tuple((queries[member].unit.id, 0) for member in planned.members),
            outputs=(Output(topic=GROUPS.name, key=None, partition=group.lane, value=value, headers=headers),),
        )

    def _count(self, planned: PlannedGroup) -> None:
        group = planned.group
        probes = sum(len(query.clusters) for query in group.queries)
        self._metrics.group_queries.observe(len(group.queries))
        self._metrics.group_overlap.observe(1 - len(group.clusters) / probes)
        for query in group.queries:
            self._metrics.window_wait_seconds.observe(query.timings_us["window_wait"] / 1_000_000)
            for stage, took_us in query.timings_us.items():
                self._metrics.stage_seconds.labels(stage=stage).observe(took_us / 1_000_000)


def grouped_query(
    query: Admitted,
    row: NDArray[np.float32],
    clusters: tuple[ClusterId, ...],
    window: Window,
    spent_us: dict[str, int],
) -> GroupedQuery:
    """Returns a query as it travels in a group: as published, less its vector, with what the stages so far took."""
    message = query.unit.message
    published_us = message.source.timestamp_ms * 1_000
    waits_us = {
        "kafka_wait": max(0, message.received_us - published_us) if published_us > 0 else 0,
        "window_wait": max(0, window.closed_us - message.received_us),
    }
    return GroupedQuery(
        query=msgspec.structs.replace(query.unit.record, vector=None),
        source=message.source,
        headers=message.headers,
        arrival_us=message.received_us,
        deadline_us=query.deadline_us,
        vector=row.astype("<f4").tobytes(),
        clusters=clusters,
        timings_us=waits_us | spent_us,
    )


def expired(query: Admitted, now_us: int) -> Done:
    """Returns the terminal answer of a query whose deadline has passed, under an id that is always the same."""
    message, record = query.unit.message, query.unit.record
    source = message.source
    late_ms = (now_us - (query.deadline_us or 0)) // 1_000
    answer = unanswered(
        query_id=record.query_id,
        status="expired",
        stage="grouper",
        error_type="expired",
        message=f"the deadline passed {late_ms} ms before the query was planned; ask again with more time",
        retryable=True,
        source=source,
        timings_ms={"total": max(0, now_us - message.received_us) / 1_000},
    )
    value, headers = encode(
        answer,
        event_id=f"{source.topic}/{source.partition}/{source.offset}/answer",
        source=EVENT_SOURCE,
        time_us=now_us,
        passed_on=message.headers,
    )
    output = Output(topic=ANSWERS.name, key=record.query_id.encode(), value=value, headers=headers)
    return Done(parts=((query.unit.id, 0),), outputs=(output,))


def group_event_id(sources: Sequence[Source]) -> str:
    """Returns the id of a group's event: the same for the same set of input records, in whatever order."""
    names = sorted(f"{source.topic}/{source.partition}/{source.offset}" for source in sources)
    return str(uuid.uuid5(uuid.NAMESPACE_URL, "carpool:group:" + ",".join(names)))
