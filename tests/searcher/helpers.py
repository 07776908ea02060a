"""A small index on disk, groups over it, and a sink that keeps what it is given."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from carpool.clock import SystemClock
from carpool.codes.row_mask import READ_BYTES, RowMask
from carpool.corpus.assign import assign
from carpool.disk.centroids import probe
from carpool.disk.document_rows import documents_of_places
from carpool.disk.documents import Passage
from carpool.disk.extent_table import read_extents
from carpool.disk.extents import SEGMENT_BYTES_MAX, ClusterExtent, segment_name
from carpool.disk.manifest import Manifest
from carpool.disk.settings import IndexSettings
from carpool.errors import CarpoolError
from carpool.kafka.records import Message, Output
from carpool.loop.stage import Done, Unit
from carpool.telemetry.metrics import Metrics
from schemas.answer import Answer
from schemas.codec import decode, decode_retrieval
from schemas.errors import RecordError
from schemas.group import Group, GroupedQuery, NextGroup
from schemas.query import Query
from schemas.record import ClusterId, Source
from schemas.retrieval import Retrieval
from schemas.topics import RETRIEVAL_DRAFTS, RETRIEVALS
from searcher.service import SearcherStage, build_stage
from searcher.settings import SearcherSettings
from tests.disk.helpers import Content, normalised
from tests.disk.helpers import write_index as write_content
from tests.waiting import WAIT_S, wait_until

Float32 = npt.NDArray[np.float32]


@dataclass(frozen=True, kw_only=True)
class SmallIndex:
    """What was written: vectors: (n, dim), the cluster of each row, centroids: (nlist, dim)."""

    dir: Path
    vectors: Float32
    assigned: npt.NDArray[np.int64]
    centroids: Float32
    manifest: Manifest
    extents: tuple[ClusterExtent, ...]

    @property
    def paths(self) -> list[Path]:
        return [self.dir / segment_name(n) for n in range(self.manifest.segment_count)]

    @property
    def size_bytes(self) -> int:
        return sum(extent.size_bytes for extent in self.extents)

    @property
    def settings(self) -> IndexSettings:
        return IndexSettings(dir=str(self.dir))

    def places(self, documents: Sequence[int]) -> list[int]:
        """The row numbers of documents."""
        return [self._places[document] for document in documents]

    @cached_property
    def _places(self) -> dict[int, int]:
        of_places = documents_of_places(
            self.manifest.layout(), self.extents, np.argsort(self.assigned, kind="stable")
        )
        return {int(document): place for place, document in enumerate(of_places)}

    def clusters_of_rows(self, rows: npt.NDArray[np.int64]) -> list[int]:
        """The cluster of each row number."""
        first_page = [extent.first_page for extent in self.extents]
        pages = rows // self.manifest.layout().rows_per_page
        clusters: list[int] = (np.searchsorted(first_page, pages, side="right") - 1).tolist()
        return clusters

    def clusters_of(self, query: Float32, nprobe: int) -> tuple[ClusterId, ...]:
        return tuple(ClusterId(int(c)) for c in probe(self.centroids, query[None, :], nprobe)[0])

    def damage(self, cluster: int) -> None:
        """Flips one byte in the middle of a cluster."""
        extent = self.extents[cluster]
        path = self.paths[extent.segment]
        content = bytearray(path.read_bytes())
        content[extent.offset_bytes + 100] ^= 0xFF
        path.write_bytes(content)


def write_index(
    folder: Path,
    vectors: Float32,
    centroids: Float32,
    *,
    documents: Iterable[Passage] | None = None,
    segment_bytes_max: int = SEGMENT_BYTES_MAX,
    has_codes: bool = False,
    has_zero_cluster: bool = False,
    **given: Any,
) -> SmallIndex:
    """Writes an index in which each row is in the cluster of its nearest centroid. What is stored
    rounds `vectors`. `has_codes`: it has codes. `has_zero_cluster`: far rows are in that.
    """
    assigned = probe(centroids, vectors, 1)[:, 0].astype(np.int64)
    if has_zero_cluster:
        assigned = assign(vectors, centroids)
    if documents is None:
        documents = (
            Passage(doc_id=f"d{row}", title=f"Title {row}", text=f"The text of row {row}.")
            for row in range(len(vectors))
        )
    content = Content(
        vectors=vectors,
        clusters=tuple(
            np.flatnonzero(assigned == one) for one in range(len(centroids) + has_zero_cluster)
        ),
        centroids=centroids,
        documents=tuple(documents),
    )
    manifest = write_content(
        folder,
        content,
        page_bytes=None,
        segment_bytes_max=segment_bytes_max,
        has_codes=has_codes,
        **{"index_version": "v-test", "nprobe_default": 1, **given},
    )
    return small_index(folder, manifest, content)


def small_index(folder: Path, manifest: Manifest, content: Content) -> SmallIndex:
    """An index that was written with `content`."""
    assigned = np.empty(len(content.vectors), np.int64)
    for cluster, rows in enumerate(content.clusters):
        assigned[rows] = cluster
    return SmallIndex(
        dir=folder,
        vectors=content.vectors,
        assigned=assigned,
        centroids=content.centroids,
        manifest=manifest,
        extents=read_extents(folder, manifest),
    )


def clustered_index(folder: Path, *, nlist: int, dimension: int, rows: int) -> SmallIndex:
    """Writes an index with codes, whose rows are near their centroids."""
    random = np.random.default_rng(1)
    centroids = normalised(random.standard_normal((nlist, dimension)).astype(np.float32))
    near = centroids[random.integers(nlist, size=rows)]
    vectors = normalised(near + 0.1 * random.standard_normal(near.shape).astype(np.float32))
    return write_index(folder, vectors, centroids, has_codes=True)


def random_index(
    folder: Path,
    *,
    rows: int = 600,
    dimension: int = 16,
    nlist: int = 8,
    seed: int = 1,
    **given: Any,
) -> SmallIndex:
    """Writes an index of random directions; its clusters are uneven."""
    generator = np.random.default_rng(seed)
    vectors = normalised(generator.standard_normal((rows, dimension)))
    centroids = normalised(generator.standard_normal((nlist, dimension)))
    return write_index(folder, vectors, centroids, **given)


def make_group(
    index: SmallIndex,
    vectors: Sequence[Float32],
    *,
    clusters: Sequence[tuple[int, ...]] | None = None,
    nprobe: int = 3,
    **given: Any,
) -> Group:
    """A group of these query vectors; without `clusters`, each probes its nearest."""
    probed = (
        clusters
        if clusters is not None
        else [index.clusters_of(vector, nprobe) for vector in vectors]
    )
    return group_of(index.manifest, list(zip(vectors, probed, strict=True)), **given)


def group_of(
    manifest: Manifest,
    searches: Sequence[tuple[Float32, Sequence[int]]],
    *,
    next_clusters: tuple[int, ...] | None = None,
    top_k: int | None = None,
    deadline_us: int | None = None,
    sequence: int = 0,
    **changes: Any,
) -> Group:
    """A group of queries, each a vector and the clusters that it probes."""
    queries = tuple(
        GroupedQuery(
            query=Query(query_id=f"q{sequence}-{position}", text="why?", top_k=top_k),
            source=Source(topic="rag.queries.v1", partition=0, offset=1000 * sequence + position),
            headers=(("traceparent", b"00-1-2-01"), ("other", b"x")),
            arrival_us=1,
            deadline_us=deadline_us,
            vector=vector.astype("<f4").tobytes(),
            clusters=tuple(map(ClusterId, clusters)),
            timings_us={"window_wait": 7},
        )
        for position, (vector, clusters) in enumerate(searches)
    )
    fields: dict[str, Any] = {
        "index_version": manifest.index_version,
        "centroids_fingerprint": manifest.centroids_fingerprint,
        "embedding_model": manifest.embedding_model,
        "grouper": "g",
        "window_id": 1,
        "lane": 0,
        "sequence": sequence,
        "queries": queries,
        "clusters": tuple(sorted({c for q in queries for c in q.clusters})),
        "next": None
        if next_clusters is None
        else NextGroup(query_id="next", clusters=tuple(map(ClusterId, next_clusters))),
    }
    return Group(**{**fields, **changes})


def make_unit(
    unit_id: int, group: Group, *, parts_done: frozenset[int] = frozenset(), size_bytes: int = 0
) -> Unit[Group]:
    """A unit as the loop would offer it."""
    message = Message(
        source=Source(topic="rag.groups.v1", partition=0, offset=unit_id, timestamp_ms=1),
        key=None,
        value=b"x" * size_bytes,
        headers=(),
        received_us=1,
    )
    return Unit(
        id=unit_id, record=group, message=message, parts=len(group.queries), parts_done=parts_done
    )


@dataclass
class ListSink:
    """Keeps everything, and lets a test wait for it."""

    dones: list[Done] = field(default_factory=list)
    hints: list[Output] = field(default_factory=list)
    failures: list[CarpoolError] = field(default_factory=list)
    reasons_to_leave: list[str] = field(default_factory=list)
    charged: list[tuple[tuple[int, int], Exception]] = field(default_factory=list)
    changed: threading.Condition = field(default_factory=threading.Condition)

    def done(self, done: Done) -> bool:
        with self.changed:
            self.dones.append(done)
            self.changed.notify_all()
        return True

    def charge(self, parts: Sequence[tuple[int, int]], error: Exception) -> None:
        self.charged += [(part, error) for part in parts]

    def hint(self, output: Output) -> None:
        self.hints.append(output)

    def refuse(self, unit: Unit[Any], error: RecordError) -> None:
        raise AssertionError("the searcher refuses no units")

    def leave_group(self, reason: str) -> None:
        self.reasons_to_leave.append(reason)

    def fail(self, error: CarpoolError) -> None:
        with self.changed:
            self.failures.append(error)
            self.changed.notify_all()

    def wait(self, is_reached: Callable[[], bool], what: str) -> None:
        """Waits until the sink shows what is expected; fails the test after a generous while."""
        with self.changed:
            assert self.changed.wait_for(is_reached, timeout=WAIT_S), (
                f"{what}: {len(self.dones)} done, {self.failures}"
            )

    def wait_done(self, count: int) -> None:
        self.wait(
            lambda: len(self.dones) >= count or bool(self.failures), f"waiting for {count} results"
        )
        assert not self.failures, self.failures

    def wait_failure(self) -> CarpoolError:
        self.wait(lambda: bool(self.failures), "waiting for a failure")
        return self.failures[0]

    def parts(self) -> list[tuple[int, int]]:
        return [pair for done in self.dones for pair in done.parts]

    def outputs(self) -> list[Output]:
        return [output for done in self.dones for output in done.outputs]

    def retrievals(self) -> dict[str, Retrieval]:
        found = [each for each in self._results() if isinstance(each, Retrieval)]
        return {retrieval.query.query_id: retrieval for retrieval in found}

    def answers(self) -> dict[str, Answer]:
        found = [each for each in self._results() if isinstance(each, Answer)]
        return {answer.query_id: answer for answer in found}

    def drafts(self) -> list[Retrieval]:
        assert {output.topic for output in self.hints} <= {RETRIEVAL_DRAFTS.name}
        return [decode(Retrieval, output.value, output.headers) for output in self.hints]

    def _results(self) -> list[Retrieval | Answer]:
        outputs = [each for each in self.outputs() if each.topic == RETRIEVALS.name]
        return [decode_retrieval(each.value, each.headers) for each in outputs]


@dataclass
class Running:
    """A stage at work, with the sink and metrics that it was given."""

    stage: SearcherStage
    sink: ListSink
    metrics: Metrics

    def __enter__(self) -> Running:
        self.stage.start(self.sink)
        return self

    def __exit__(self, *_: object) -> None:
        try:
            self.stage.check_integrity()
        finally:
            self.stage.close()

    def wait_ready(self) -> None:
        wait_until(lambda: self.sink.failures or not self.stage.not_ready(), self.stage.not_ready)
        assert not self.sink.failures, self.sink.failures

    def search(self, *groups: Group) -> dict[str, Retrieval]:
        """Offers groups and returns the retrievals of all of them."""
        self.wait_ready()
        before = len(self.sink.dones)
        for number, group in enumerate(groups):
            self.stage.offer(make_unit(before + number, group), 0)
        self.sink.wait_done(before + sum(len(group.queries) for group in groups))
        return self.sink.retrievals()

    def count(self, name: str, **labels: str) -> float:
        return self.metrics.registry.get_sample_value(f"carpool_{name}", labels or None) or 0.0


def running(index: SmallIndex, clock: Any = None, **given: Any) -> Running:
    """A stage over `index`; settings by name, and the seams `events`, `open_reads`, `scans`."""
    seams = {name: given.pop(name) for name in ("events", "open_reads", "scans") if name in given}
    metrics = Metrics()
    stage = build_stage(
        SearcherSettings(**given), index.settings, metrics, clock or SystemClock(), **seams
    )
    return Running(stage=stage, sink=ListSink(), metrics=metrics)


def row_mask(are_visible: npt.NDArray[np.bool_]) -> RowMask:
    """The mask of rows 0 to n: `are_visible`, (n,)."""
    bits = np.packbits(are_visible, bitorder="little")
    return np.concatenate([bits, np.zeros(READ_BYTES, np.uint8)])


def some_visible(index: SmallIndex) -> npt.NDArray[np.bool_]:
    """Which documents are visible where some are hidden, among them all of cluster 1."""
    are_visible = np.random.default_rng(5).random(len(index.vectors)) < 0.4
    are_visible[index.assigned == 1] = False
    return are_visible


def mask_of(index: SmallIndex, are_visible: npt.NDArray[np.bool_]) -> RowMask:
    """The mask of rows of visible documents."""
    places = np.array(index.places(range(len(are_visible))))
    by_row = np.zeros(places.max() + 1, np.bool_)
    by_row[places] = are_visible
    return row_mask(by_row)


def exact_top_k(
    index: SmallIndex,
    query: Float32,
    clusters: Iterable[int],
    top_k: int,
    are_visible: npt.NDArray[np.bool_] | None = None,
) -> list[int]:
    """The dumb version: every visible row of the probed clusters, scored and sorted."""
    is_candidate = np.isin(index.assigned, list(clusters))
    rows = np.flatnonzero(is_candidate if are_visible is None else is_candidate & are_visible)
    scores = index.vectors[rows] @ query
    return [int(row) for row in rows[np.lexsort((rows, -scores))][:top_k]]
