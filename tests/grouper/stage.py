"""The grouper as a stage, with a real index's centroids, a list for a sink and a clock that is
moved by hand.
"""

from __future__ import annotations

import threading
import zlib
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from carpool.disk.centroids import (
    CENTROIDS_NAME,
    centroids_fingerprint,
    read_centroids,
    write_centroids,
)
from carpool.disk.manifest import FileEntry, Manifest, read_manifest, write_manifest
from carpool.embedding.hashing import HashingEmbedder
from carpool.errors import CarpoolError
from carpool.kafka.records import Output
from carpool.loop.stage import Done, Unit
from carpool.telemetry.metrics import Metrics
from carpool.workflow.load import load_workflows
from carpool.workflow.settings import WorkflowSettings
from carpool.workflow.workflows import Workflows
from grouper.build import index_facts
from grouper.plan.plan_groups import Groups, plan_groups
from grouper.service import GrouperStage
from grouper.settings import GrouperSettings
from grouper.work import GroupPlanner, WindowWork
from schemas.codec import decode
from schemas.errors import RecordError
from schemas.group import Group
from schemas.query import Query
from schemas.record import Headers
from schemas.topics import GROUPS, QUERIES
from tests.clocks import HandClock
from tests.records import a_message
from tests.waiting import WAIT_S, wait_until

DIMENSION = 64
NLIST = 8
EMBEDDER = HashingEmbedder(DIMENSION)
WORDS = ("ada", "bell", "curie", "darwin", "euler", "faraday", "gauss", "hopper")
SETTINGS = GrouperSettings(window_queries_max=6, window_ms_max=100)
AHEAD = GrouperSettings(window_queries_max=4, window_ms_max=100, horizon_windows=2, nprobe=1)

TRACED: Headers = (("traceparent", b"00-1"),)


class ListSink:
    """Keeps what a stage hands over, and lets a test wait for it."""

    def __init__(self) -> None:
        self.dones: list[Done] = []
        self.refusals: list[tuple[Unit[Query], RecordError]] = []
        self.failures: list[CarpoolError] = []
        self.reasons_to_leave: list[str] = []
        self.charged: list[tuple[int, Exception]] = []

    def done(self, done: Done) -> bool:
        self.dones.append(done)
        return True

    def charge(self, parts: Sequence[tuple[int, int]], error: Exception) -> None:
        self.charged += [(unit_id, error) for unit_id, _ in parts]

    def hint(self, output: Output) -> None:
        raise AssertionError("the grouper sends no hints")

    def refuse(self, unit: Unit[Query], error: RecordError) -> None:
        self.refusals.append((unit, error))

    def leave_group(self, reason: str) -> None:
        self.reasons_to_leave.append(reason)

    def fail(self, error: CarpoolError) -> None:
        self.failures.append(error)

    @property
    def acknowledged(self) -> list[int]:
        return [unit_id for done in self.dones for unit_id, _ in done.parts]

    @property
    def groups(self) -> list[Group]:
        outputs = [
            output for done in self.dones for output in done.outputs if output.topic == GROUPS.name
        ]
        return [decode(Group, output.value, output.headers) for output in outputs]


class Gate(HashingEmbedder):
    """The hashing embedder behind a gate: a test sees a batch come and lets it through."""

    def __init__(self) -> None:
        super().__init__(DIMENSION)
        self.batches: list[list[str]] = []
        self.opened = threading.Semaphore(0)

    def encode(self, texts: Sequence[str]) -> NDArray[np.float32]:
        self.batches.append(list(texts))
        assert self.opened.acquire(timeout=WAIT_S)
        return super().encode(texts)


class GatePolicy:
    """Everybody together, when the gate is open: a test holds a window while it leaves."""

    def __init__(self) -> None:
        self.windows = 0
        self.opened = threading.Semaphore(0)

    def __call__(self, clusters: Sequence[Sequence[int]], deadlines: Sequence[int]) -> Groups:
        self.windows += 1
        assert self.opened.acquire(timeout=WAIT_S)
        return (tuple(range(len(clusters))),)


def write_index(folder: Path, embedder: HashingEmbedder = EMBEDDER) -> Manifest:
    """The part of an index that the grouper reads: manifest and centroids, through the real
    writers.
    """
    centroids = embedder.encode(WORDS)
    write_centroids(folder, centroids)
    content = (folder / CENTROIDS_NAME).read_bytes()
    manifest = Manifest(
        format="v2",
        index_version="v-1",
        dimension=embedder.dimension,
        metric="inner_product",
        nlist=NLIST,
        vector_dtype="float32",
        page_bytes=4096,
        segment_count=1,
        build_id=1,
        documents_build_id=1,
        embedding_model=embedder.fingerprint,
        embedding_model_name=f"hashing:{embedder.dimension}",
        centroids_fingerprint=centroids_fingerprint(centroids),
        row_count=NLIST,
        nprobe_default=3,
        files={CENTROIDS_NAME: FileEntry(size_bytes=len(content), crc32=zlib.crc32(content))},
    )
    write_manifest(folder, manifest)
    return manifest


class Rig:
    """A running stage over an index in `folder`."""

    def __init__(
        self,
        folder: Path,
        *,
        settings: GrouperSettings = SETTINGS,
        embedder: HashingEmbedder | None = None,
        policy: GroupPlanner | None = None,
        clock: HandClock | None = None,
        needs_horizon: bool = True,
        workflows: Workflows | None = None,
    ) -> None:
        self.clock = clock or HandClock()
        self.sink = ListSink()
        self.metrics = Metrics()
        self.units = 0

        def load() -> WindowWork:
            manifest = read_manifest(folder)
            return WindowWork(
                facts=index_facts(manifest, settings.nprobe),
                centroids=read_centroids(folder, manifest),
                embedder=embedder or EMBEDDER,
                group=policy
                or partial(
                    plan_groups,
                    policy=settings.policy,
                    jaccard_similarity_min=settings.jaccard_similarity_min,
                ),
                grouper="test",
                clock=self.clock,
                metrics=self.metrics,
                needs_horizon=needs_horizon,
            )

        self.stage = GrouperStage(
            workflows=workflows or load_workflows(WorkflowSettings()),
            settings=settings,
            load=load,
            metrics=self.metrics,
            clock=self.clock,
        )

    def unit(
        self,
        query: Query,
        *,
        topic: str = QUERIES.name,
        headers: Headers = TRACED,
        published_us: int | None = None,
    ) -> Unit[Query]:
        self.units += 1
        now_us = self.clock.time_us
        message = a_message(
            topic,
            self.units,
            value=b"x" * 90,
            headers=headers,
            timestamp_ms=(now_us if published_us is None else published_us) // 1_000,
            received_us=now_us,
        )
        return Unit(id=self.units, record=query, message=message)

    def offer(
        self, *texts: str, topic: str = QUERIES.name, headers: Headers = TRACED, **wishes: Any
    ) -> list[Unit[Query]]:
        units = []
        for text in texts:
            query = Query(query_id=f"q-{self.units + 1}", text=text, **wishes)
            units.append(self.unit(query, topic=topic, headers=headers))
            self.stage.offer(units[-1], self.clock.time_us)
        return units

    def tick(self, waiting: int = 0) -> int | None:
        return self.stage.tick(self.clock.time_us, waiting)

    def settled(self, count: int) -> None:
        wait_until(lambda: len(self.sink.acknowledged) >= count)
        wait_until(lambda: not self.stage.pending_windows())
        self.stage.check_integrity()


@contextmanager
def running(folder: Path, **options: Any) -> Iterator[Rig]:
    if not (folder / CENTROIDS_NAME).exists():
        write_index(folder)
    rig = Rig(folder, **options)
    rig.stage.start(rig.sink)
    try:
        wait_until(lambda: not rig.stage.not_ready() or bool(rig.sink.failures))
        yield rig
    finally:
        rig.stage.close()
        assert not any(thread.is_alive() for thread in rig.stage._worker._threads)


def prepared(rig: Rig) -> int:
    return sum(window.is_prepared for window in rig.stage.pending_windows())
