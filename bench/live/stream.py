"""`carpool bench live stream`: fresh rows over saved bases, against a new build of the same rows.

In process, without Kafka. The stream inserts, replaces and deletes; topics come one after the
other, so many rows are far from the centroids of the base.
"""

from __future__ import annotations

import shutil
import time
from collections.abc import Iterator, Sequence
from pathlib import Path

import msgspec
import numpy as np

from bench.core.run import BenchRun
from bench.data.grown import cluster
from bench.data.index import built
from bench.live.corpus import LiveSet, live_set
from bench.live.options import StreamOptions
from carpool.arrays import Bool, Float32, Int64
from carpool.clock import SystemClock
from carpool.corpus.assign import assign
from carpool.corpus.fold import Fold
from carpool.corpus.passages import passages_of
from carpool.digest import digest_of
from carpool.disk.centroids import probe
from carpool.disk.document_rows import place_count
from carpool.disk.index import open_index
from carpool.disk.manifest import BaseFacts
from carpool.disk.rotation import read_rotation
from carpool.errors import ReadError
from carpool.telemetry.metrics import Metrics
from indexer.plan.defaults import default_nprobe
from indexer.progress import SilentProgress
from indexer.save import FreshDocument, save_base
from indexer.saver import FULL_SHARE
from indexer.settings import IndexerConfig
from indexer.vectors import open_precomputed
from schemas.document import DocumentVectors, IndexedPassage
from schemas.query import SearchMode
from schemas.record import ClusterId, Source
from schemas.topics import VECTORS
from searcher.build import search_and_passages
from searcher.executor import Search, SearchGroup
from searcher.fresh.corpus import LiveCorpus
from searcher.fresh.passages import read_passages
from searcher.fresh.rows import FreshRows
from searcher.local import SearchThread
from searcher.settings import SearcherSettings

TOPICS, EARLY_TOPICS, ROUNDS = 20, 12, 10
REPLACE_SHARE, DELETE_SHARE = 0.25, 0.2
"""Of the rows of a round: those that replace a document; and so many others are deleted."""
FRESH_ROW_BYTES = 600
"""`fresh_bytes` for each row of the set: about three bases are saved."""
TOP_K, TIE = 10, 1e-4
RECALL_MIN, SCANNED_MAX, DEFAULT_MIN = 0.998, 1.2, 0.998
FAR_SHARE, GROWTH = 0.05, 2.0
"""When `corpus save --retrain` is advised."""
Changes = Sequence[tuple[int, int]]
DELETED = -1


class Checkpoint(msgspec.Struct, frozen=True, kw_only=True):
    """`recall`: of exact truth. `scanned`: codes a query. `kept`: of the best rows in the clusters
    that a query probes, by mode; `far_kept`: of those in the zero cluster. `mb`: codes, fresh rows.
    """

    rows: int
    bases: int
    is_retrained: bool
    far_share: float
    recall: float
    recall_of_build: float
    recall_ratio: float
    scanned: float
    scanned_ratio: float
    mb: float
    mb_of_build: float
    mb_ratio: float
    kept: dict[str, float]
    far_kept: float


def rounds(topics: Int64, seed: int) -> tuple[list[int], list[list[tuple[int, int]]]]:
    """Returns the row of each document of the base, and the changes of each round: document and
    row, or `DELETED`. `topics`: of each row, (n,). Pure.
    """
    rng = np.random.default_rng(seed)
    order = rng.permutation(TOPICS)[topics]
    early = rng.permutation(np.flatnonzero(order < EARLY_TOPICS))
    base, later = early[: len(early) // 2], np.flatnonzero(order >= EARLY_TOPICS)
    rest = np.concatenate([early[len(base) :], later])
    rest = rest[np.argsort(order[rest] + rng.uniform(0, TOPICS / 4, len(rest)))]
    there, made, found = list(range(len(base))), len(base), list[list[tuple[int, int]]]()
    for batch in np.array_split(rest, ROUNDS):
        changes = list[tuple[int, int]]()
        for row in batch.tolist():
            if rng.random() < REPLACE_SHARE:
                changes.append((there[rng.integers(len(there))], row))
            else:
                changes.append((made, row))
                there.append(made)
                made += 1
        for _ in range(int(DELETE_SHARE * len(batch))):
            changes.append((there.pop(rng.integers(len(there) // 2)), DELETED))  # an older one
        found.append(changes)
    return base.tolist(), found


def share_found(scores: Float32, among: Bool, found: Int64) -> float:
    """Returns the share of the best `TOP_K` rows of each query that was found; ties count. Pure.

    `scores`, and the rows `among` which the best are: (queries, rows). `found`: (queries, TOP_K).
    """
    best = np.sort(np.where(among, scores, -np.inf), axis=1)[:, -TOP_K:]
    own = np.take_along_axis(scores, found, axis=1)
    hits = (own >= best[:, :1] - TIE).sum(axis=1)
    return float(np.minimum(hits, TOP_K).mean() / TOP_K)


class OpenBase:
    """An index that is searched in process, and what is folded over it."""

    def __init__(self, live: LiveSet, folder: Path, fresh_bytes: int) -> None:
        self.folder, self._live = folder, live
        self.index = open_index(folder)
        manifest, metrics = self.index.manifest, Metrics()
        settings = SearcherSettings(budget_bytes=1 << 30, direct_io="auto")
        found = search_and_passages(self.index, settings, metrics, SystemClock())
        found.rows.open()
        fresh = FreshRows(
            self.index.centroids,
            read_rotation(folder, manifest),
            first_row=place_count(self.index.layout, self.index.extents),
            limit_bytes=fresh_bytes,
        )
        self.fold = Fold(found.rows, manifest.base.position if manifest.base else {})
        self.corpus = LiveCorpus(
            self.fold,
            found.rows,
            fresh,
            name=manifest.index_version,
            embedding_model=manifest.embedding_model,
            metrics=metrics,
        )
        self._passages, self._thread = found.passages, SearchThread(found.plane)
        self._changed = dict[int, DocumentVectors]()

    def change(self, number: int, row: int, offset: int) -> None:
        """Folds the change of a document."""
        record = DocumentVectors(offset=offset, deleted=True)
        if row != DELETED:
            one = self._live.passage(row, 0)
            record = DocumentVectors(
                offset=offset,
                embedding_model=self.index.manifest.embedding_model,
                title=one.title,
                passages=(IndexedPassage(text=one.text),),
                vectors=self._live.vectors[row].tobytes(),
            )
        source = Source(topic=VECTORS.name, partition=0, offset=offset)
        assert self.corpus.add(f"d{number}".encode(), record, source, is_old=False)
        self._changed[number] = record

    def save(self, folder: Path) -> None:
        """Saves the next base."""
        keys = {f"d{number}".encode(): record for number, record in self._changed.items()}
        fresh = (
            FreshDocument(
                digest_of(key),
                tuple(passages_of(key, record)),
                np.frombuffer(record.vectors, "<f2").reshape(1, -1),
            )
            for key, record in keys.items()
            if not record.deleted
        )
        hidden = [digest_of(key) for key in keys]
        facts = BaseFacts(position=self.fold.position, vectors={})
        save_base(self.folder, folder, facts, hidden, fresh, SystemClock(), SilentProgress())

    def search(
        self, queries: Float32, nprobe: int, mode: SearchMode
    ) -> tuple[list[list[int]], float]:
        """Returns the documents that are found, and how many codes a query scans."""
        self.corpus.publish()
        snapshot, zero = self.corpus.snapshot, self.index.manifest.zero_clusters
        clusters = [
            [*each, *zero] for each in probe(self.index.centroids, queries, nprobe).tolist()
        ]
        searches = tuple(
            Search(
                key=time.monotonic_ns(),
                vector=vector,
                clusters=tuple(map(ClusterId, own)),
                top_k=TOP_K,
                mode=mode,
                snapshot=snapshot,
            )
            for vector, own in zip(queries, clusters, strict=True)
        )
        results = self._thread.search(SearchGroup(searches=searches))
        rows = [result.best.rows.tolist() for result in results]
        found = list[list[int]]([[]] * len(rows))
        for at, passages in read_passages(self._passages, rows, [snapshot.fresh] * len(rows)):
            assert not isinstance(passages, ReadError)
            found[at] = [int(each.doc_id[1:]) for each in passages]
        counts = np.zeros(self.index.manifest.nlist + 1)
        counts[: len(self.index.extents)] = [each.row_count for each in self.index.extents]
        if snapshot.fresh is not None:
            counts += snapshot.fresh.blocks.row_counts
        nlist = self.index.manifest.nlist
        return found, float(np.mean([counts[[*{*own, nlist}]].sum() for own in clusters]))

    @property
    def mb(self) -> float:
        """Memory of codes and fresh rows."""
        files = self.index.manifest.files.items()
        codes_bytes = sum(one.size_bytes for name, one in files if name.startswith("codes-"))
        return (codes_bytes + self.corpus.fresh.size_bytes) / 1e6

    def close(self) -> None:
        self._thread.close()
        self._passages.close()
        self.index.close()


class Stream:
    """The stream, and the state that it leads to."""

    def __init__(self, live: LiveSet, options: StreamOptions, folder: Path) -> None:
        self._live, self._folder = live, folder
        self._nlist = options.nlist or round(4 * len(live.vectors) ** 0.5 / 2)
        self._fresh_bytes = FRESH_ROW_BYTES * len(live.vectors)
        self._vectors = np.asarray(live.vectors, np.float32)
        asked = [np.frombuffer(one.vector or b"", "<f4") for one in live.asked(options.questions)]
        self._queries = np.array(asked, np.float32)
        topics = cluster(open_precomputed(folder.parent / "vectors.npy"), nlist=TOPICS, seed=0)[1]
        base, self._rounds = rounds(topics.astype(np.int64), options.seed)
        self._rows = dict(enumerate(base))
        self._trained_rows, self._offset, self._bases = len(base), 0, 0
        self._is_put = set[int]()
        self._base = OpenBase(live, self._build("base"), self._fresh_bytes)
        self._nprobe = default_nprobe(1 << 30, self._nlist)

    def checkpoints(self, *, retrains: bool) -> Iterator[Checkpoint]:
        """Yields what there is after each round. `retrains`: where that is advised. Blocks."""
        for changes in self._rounds:
            for number, row in changes:
                self._offset += 1
                self._base.change(number, row, self._offset)
                self._rows[number] = row
                self._is_put.add(number)
                if row == DELETED:
                    del self._rows[number]
                if self._base.fold.used_bytes > FULL_SHARE * self._fresh_bytes:
                    self._bases += 1
                    self._base.save(folder := self._folder / f"base-{self._bases}")
                    self._open(folder)
            build = self._build("build")
            far_share = float((self._clusters() == self._nlist).mean())
            is_due = far_share > FAR_SHARE or len(self._rows) >= GROWTH * self._trained_rows
            if retrains and is_due:
                self._open(build.rename(self._folder / f"trained-{self._offset}"))
                self._is_put.clear()
                self._trained_rows = len(self._rows)
                build = self._build("build")
            yield self._checkpoint(build, far_share, is_retrained=retrains and is_due)

    def _open(self, folder: Path) -> None:
        self._base.close()
        self._base = OpenBase(self._live, folder, self._fresh_bytes)

    def _build(self, name: str) -> Path:
        """Returns a new index of the documents as they are, with new centroids."""
        folder, rows = self._folder / name, list(self._rows.values())
        vectors, corpus = self._folder / "rows.npy", self._folder / "rows.jsonl"
        np.save(vectors, self._live.vectors[rows])
        with corpus.open("wb") as file:
            for number, row in self._rows.items():
                one = self._live.passage(row, 0)
                line = {"id": f"d{number}", "title": one.title, "text": one.text}
                file.write(msgspec.json.encode(line) + b"\n")
        built(corpus, folder, IndexerConfig(), vectors=vectors, nlist=self._nlist)
        return folder

    def _clusters(self) -> Int64:
        """Returns the cluster of each document in the base and behind it: (n,) int64."""
        vectors, centroids = self._vectors[list(self._rows.values())], self._base.index.centroids
        is_put = np.array([number in self._is_put for number in self._rows])
        nearest = (vectors @ centroids.T).argmax(axis=1)
        return np.where(is_put, assign(vectors, centroids), nearest)

    def _checkpoint(self, build: Path, far_share: float, *, is_retrained: bool) -> Checkpoint:
        at = {number: place for place, number in enumerate(self._rows)}
        scores = self._queries @ self._vectors[list(self._rows.values())].T
        clusters, every = self._clusters(), np.ones(scores.shape, np.bool_)
        probes = probe(self._base.index.centroids, self._queries, self._nprobe)
        seen = np.array([np.isin(clusters, [*own, self._nlist]) for own in probes])
        kept, found = dict[str, float](), np.empty(0, np.int64)
        modes: tuple[SearchMode, ...] = ("exact", "default")
        for mode in modes:
            ids, scanned = self._base.search(self._queries, self._nprobe, mode)
            found = np.array([[at[each] for each in own] for own in ids])
            kept[mode] = share_found(scores, seen, found)
        new = OpenBase(self._live, build, 1 << 20)
        ids, scanned_new = new.search(self._queries, self._nprobe, "default")
        found_new = np.array([[at[each] for each in own] for own in ids])
        recall, recall_new = (
            share_found(scores, every, found),
            share_found(scores, every, found_new),
        )
        mb, mb_new = self._base.mb, new.mb
        new.close()
        best = np.argsort(-np.where(seen, scores, -np.inf), axis=1)[:, :TOP_K]
        far = [
            (row, own)
            for rows, own in zip(best, found, strict=True)
            for row in rows
            if clusters[row] == self._nlist
        ]
        return Checkpoint(
            rows=len(self._rows),
            bases=self._bases,
            is_retrained=is_retrained,
            far_share=far_share,
            recall=recall,
            recall_of_build=recall_new,
            recall_ratio=recall / recall_new,
            scanned=scanned,
            scanned_ratio=scanned / scanned_new,
            mb=mb,
            mb_of_build=mb_new,
            mb_ratio=mb / mb_new,
            kept=kept,
            far_kept=float(np.mean([bool((own == row).any()) for row, own in far] or [True])),
        )


def run(options: StreamOptions) -> bool:
    run = BenchRun("live-stream", options)
    live = live_set(options)
    folder = live.index.dir.parent / "stream"
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir()
    found = list[Checkpoint]()
    for each in Stream(live, options, folder).checkpoints(retrains=options.retrain):
        run.note(f"round {len(found) + 1}: recall {each.recall:.4f}, {each.recall_of_build:.4f}")
        found.append(each)
    fresh_mb = FRESH_ROW_BYTES * len(live.vectors) / 1e6
    promises = {
        f"recall at least {RECALL_MIN} of a new build": all(
            each.recall_ratio >= RECALL_MIN for each in found
        ),
        f"codes scanned at most {SCANNED_MAX} of it": all(
            each.scanned_ratio <= SCANNED_MAX for each in found
        ),
        "memory at most that of it and fresh_bytes": all(
            each.mb <= each.mb_of_build + fresh_mb for each in found
        ),
        f"exact searches find all, default ones {DEFAULT_MIN}": all(
            each.kept["exact"] == 1 and each.kept["default"] >= DEFAULT_MIN for each in found
        ),
    }
    tables = {"stream": {f"round {n}": each for n, each in enumerate(found, start=1)}}
    return run.finish(tables, promises=promises, results=found, index=live.index.facts)
