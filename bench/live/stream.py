"""`carpool bench live stream`: fresh rows over saved bases, against a new build of the same rows.

In process, without Kafka. The stream inserts, replaces and deletes; topics come one after the
other, so many rows are far from the centroids of the base.
"""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from itertools import count
from pathlib import Path
from typing import Any

import numpy as np

from bench.core.run import BenchRun
from bench.data.grown import cluster
from bench.data.index import built
from bench.live.corpus import LiveSet, live_set, write_corpus
from bench.live.options import StreamOptions
from carpool.arrays import Bool, Float32, Int64
from carpool.clock import SystemClock
from carpool.corpus.assign import assign
from carpool.corpus.follower import Received
from carpool.corpus.passages import passages_of
from carpool.digest import digest_of
from carpool.disk.centroids import probe
from carpool.disk.index import open_index
from carpool.disk.manifest import BaseFacts
from carpool.kafka.settings import KafkaSettings
from carpool.telemetry.metrics import Metrics
from indexer.plan.defaults import FLAT_ROWS_MAX, default_nprobe
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
from searcher.fresh.open import open_corpus
from searcher.fresh.passages import read_passages
from searcher.local import SearchThread
from searcher.settings import SearcherSettings

LEFT_OUT = "Kafka; the time that folds and saves take; after new centroids both sides are equal"
TOPICS, EARLY_TOPICS, ROUNDS, QUESTIONS = 20, 12, 10, 500
REPLACE_SHARE, DELETE_SHARE = 0.25, 0.2
"""Of the rows of a round: those that replace a document; and so many others are deleted."""
FRESH_ROW_BYTES = 600
"""`fresh_bytes` for each row of the set: about three bases are saved."""
TOP_K, TIE, CLOCK = 10, 1e-4, SystemClock()
RECALL_MIN, SCANNED_MAX, DEFAULT_MIN = 0.998, 1.2, 0.998
FAR_SHARE, GROWTH = 0.05, 2.0
"""When `corpus save --retrain` is advised."""


def share_found(scores: Float32, among: Bool, found: Int64) -> float:
    """Returns the share of the best `TOP_K` rows of each query that was found; ties count. Pure.

    `scores`, and the rows `among` which the best are: (queries, rows). `found`: (queries, TOP_K).
    """
    best = np.sort(np.where(among, scores, -np.inf), axis=1)[:, -TOP_K:]
    hits = (np.take_along_axis(scores, found, axis=1) >= best[:, :1] - TIE).sum(axis=1)
    return float(np.minimum(hits, TOP_K).mean() / TOP_K)


class OpenBase:
    """An index that is searched in process, and what is folded over it."""

    def __init__(self, live: LiveSet, folder: Path) -> None:
        self._folder, self._live, self._changed = folder, live, dict[bytes, DocumentVectors]()
        self.index, metrics = open_index(folder), Metrics()
        self.fresh_bytes = FRESH_ROW_BYTES * len(live.vectors)
        own = SearcherSettings(budget_bytes=1 << 30, fresh_bytes=self.fresh_bytes, direct_io="auto")
        self._opened = search_and_passages(self.index, own, metrics, CLOCK)
        rows, kafka = self._opened.rows, KafkaSettings()  # nothing is read from it
        _, self.corpus = open_corpus(self.index, own, kafka, metrics, CLOCK, None, rows)
        self._thread = SearchThread(self._opened.plane)

    def change(self, number: int, row: int | None, offset: int) -> None:
        """Folds a change of a document; None: it is deleted."""
        record, key = DocumentVectors(offset=offset, deleted=True), f"d{number}".encode()
        if row is not None:
            one, model = self._live.passage(row, 0), self.index.manifest.embedding_model
            record = DocumentVectors(
                offset=offset,
                embedding_model=model,
                title=one.title,
                passages=(IndexedPassage(text=one.text),),
                vectors=self._live.vectors[row].tobytes(),
            )
        source = Source(topic=VECTORS.name, partition=0, offset=offset)
        assert self.corpus.add([Received(key, record, source, is_old=False)])
        self._changed[key] = record

    def save(self, folder: Path) -> Path:
        """Saves the next base."""
        vectors = {key: np.frombuffer(one.vectors, "<f2") for key, one in self._changed.items()}
        fresh = (
            FreshDocument(digest_of(key), tuple(passages_of(key, one)), vectors[key][None])
            for key, one in self._changed.items()
            if not one.deleted
        )
        hidden, facts = map(digest_of, self._changed), BaseFacts(position={}, vectors={})
        save_base(self._folder, folder, facts, hidden, fresh, CLOCK, SilentProgress())
        return folder

    def search(
        self, queries: Float32, nprobe: int, mode: SearchMode
    ) -> tuple[list[list[int]], float]:
        """Returns the documents that are found, and how many codes a query scans."""
        self.corpus.publish()
        snapshot, manifest = self.corpus.snapshot, self.index.manifest
        probed = probe(self.index.centroids, queries, nprobe).tolist()
        searches = tuple(
            Search(
                key=CLOCK.now_us() * len(queries) + at,
                vector=queries[at],
                clusters=tuple(map(ClusterId, (*own, *manifest.zero_clusters))),
                top_k=TOP_K,
                mode=mode,
                snapshot=snapshot,
            )
            for at, own in enumerate(probed)
        )
        results = self._thread.search(SearchGroup(searches=searches))
        rows, seen = [one.best.rows.tolist() for one in results], [snapshot.fresh] * len(results)
        passages: dict[int, Any] = dict(read_passages(self._opened.passages, rows, seen))
        counts = np.zeros(manifest.nlist + 1)
        counts[: len(self.index.extents)] = [each.row_count for each in self.index.extents]
        counts += 0 if snapshot.fresh is None else snapshot.fresh.blocks.row_counts
        found = [[int(one.doc_id[1:]) for one in passages[at]] for at in range(len(rows))]
        return found, float(np.mean([counts[[*own, manifest.nlist]].sum() for own in probed]))

    @property
    def mb(self) -> float:
        """Memory of codes and fresh rows."""
        files = self.index.manifest.files.items()
        codes_bytes = sum(one.size_bytes for name, one in files if name.startswith("codes-"))
        return (codes_bytes + self.corpus.fresh.size_bytes) / 1e6

    def close(self) -> None:
        self._thread.close()
        self._opened.passages.close()
        self.index.close()


class Stream:
    """The stream, and the row of each document to which it leads. Folders are made in `folder`."""

    def __init__(self, live: LiveSet, options: StreamOptions, folder: Path) -> None:
        self._live, self._folder, self._retrains = live, folder, options.retrain
        self._nlist = options.nlist or round(2 * len(live.vectors) ** 0.5)
        self._nprobe = default_nprobe(FLAT_ROWS_MAX + 1, self._nlist)
        self._vectors, self._rng = (
            np.asarray(live.vectors, "f4"),
            np.random.default_rng(options.seed),
        )
        asked = live.questions[:QUESTIONS]
        self._queries = np.array([np.frombuffer(one.vector or b"", "<f4") for one in asked])
        topics = cluster(open_precomputed(live.folder / "vectors.npy"), nlist=TOPICS, seed=0)[1]
        order = self._rng.permutation(TOPICS)[topics]
        early = self._rng.permutation(np.flatnonzero(order < EARLY_TOPICS))
        rest = np.setdiff1d(np.arange(len(order)), base := early[: len(early) // 2])
        late = order[rest] + self._rng.uniform(0, TOPICS / 4, len(rest))
        self._batches = np.array_split(rest[np.argsort(late)], ROUNDS)
        self._rows, self._is_put = dict(enumerate(base.tolist())), set[int]()
        self._base, self._numbers = OpenBase(live, self._build("base")), count(len(base))

    def rounds(self) -> Iterator[dict[str, Any]]:
        """Yields what there is after each round. Blocks."""
        offsets, bases, saved, trained_rows = count(1), count(1), 0, len(self._rows)
        for batch in self._batches:
            for number, row in self._changes(batch.tolist()):
                self._base.change(number, row, next(offsets))
                if self._base.corpus.fresh.size_bytes > FULL_SHARE * self._base.fresh_bytes:
                    saved = next(bases)
                    self._replace(self._base.save(self._folder / f"base-{saved}"))
            build, far_share = self._build("build"), float(np.mean(self._clusters() == self._nlist))
            is_due = far_share > FAR_SHARE or len(self._rows) >= GROWTH * trained_rows
            if is_retrained := self._retrains and is_due:  # it has the clusters of a new build
                self._replace(build.rename(self._folder / f"trained-{next(offsets)}"))
                self._is_put.clear()
                build, trained_rows = self._build("build"), len(self._rows)
            state = {"rows": len(self._rows), "bases saved": saved, "new centroids": is_retrained}
            yield {**state, "far": far_share, **self._compared(build)}

    def _changes(self, batch: list[int]) -> Iterator[tuple[int, int | None]]:
        """Yields the changes of a round, document and row, which it makes to `_rows`."""
        there, drawn = list(self._rows), self._rng.random(len(batch))
        for row, is_replacing in zip(batch, drawn < REPLACE_SHARE, strict=True):
            number = int(self._rng.choice(there)) if is_replacing else next(self._numbers)
            self._rows[number] = row
            self._is_put.add(number)
            yield number, row
        for number in self._rng.choice(
            there, int(DELETE_SHARE * len(batch)), replace=False
        ).tolist():
            del self._rows[number]
            yield number, None

    def _replace(self, folder: Path) -> None:
        self._base.close()
        self._base = OpenBase(self._live, folder)

    def _build(self, name: str) -> Path:
        """Returns a new index of the documents as they are, with new centroids."""
        vectors, corpus = self._folder / "rows.npy", self._folder / "rows.jsonl"
        np.save(vectors, self._live.vectors[list(self._rows.values())])
        texts = (self._live.passage(row, 0) for row in self._rows.values())
        write_corpus(corpus, (f"d{number}" for number in self._rows), texts)
        folder = self._folder / name
        built(corpus, folder, IndexerConfig(), vectors=vectors, nlist=self._nlist)
        return folder

    def _clusters(self) -> Int64:
        """Returns the cluster of each document in the base and behind it: (n,) int64."""
        vectors, centroids = self._vectors[list(self._rows.values())], self._base.index.centroids
        is_put = np.array([number in self._is_put for number in self._rows])
        nearest = (vectors @ centroids.T).argmax(axis=1)
        return np.where(is_put, assign(vectors, centroids), nearest)

    def _compared(self, build: Path) -> dict[str, Any]:
        """Returns how the base with fresh rows compares with a new build."""
        at = {number: place for place, number in enumerate(self._rows)}
        scores = self._queries @ self._vectors[list(self._rows.values())].T

        def found(base: OpenBase, mode: SearchMode) -> tuple[Int64, float]:
            ids, scanned = base.search(self._queries, self._nprobe, mode)
            return np.array([[at[each] for each in own] for own in ids]), scanned

        clusters, every = self._clusters(), np.ones(scores.shape, np.bool_)
        probes = probe(self._base.index.centroids, self._queries, self._nprobe)
        seen = np.array([np.isin(clusters, [*own, self._nlist]) for own in probes])
        new = OpenBase(self._live, build)
        (own, scanned), (exact, _) = found(self._base, "default"), found(self._base, "exact")
        of_new, scanned_new = found(new, "default")
        recall, recall_new = share_found(scores, every, own), share_found(scores, every, of_new)
        best = np.argsort(-np.where(seen, scores, -np.inf), axis=1)[:, :TOP_K]
        is_far, is_own = clusters[best] == self._nlist, (best[:, :, None] == own[:, None]).any(2)
        new.close()
        return {
            "recall": recall,
            "recall of a build": recall_new,
            "recall ratio": recall / recall_new,
            "codes scanned ratio": scanned / scanned_new,
            "MB": self._base.mb,
            "MB of a build": new.mb,
            "exact finds": share_found(scores, seen, exact),
            "default finds": share_found(scores, seen, own),
            "default finds of far ones": float(is_own[is_far].mean()) if is_far.any() else 1.0,
        }


def run(options: StreamOptions) -> bool:
    run = BenchRun("live-stream", options, left_out=LEFT_OUT)
    live, found = live_set(options), list[dict[str, Any]]()
    folder, fresh_mb = live.folder / "stream", FRESH_ROW_BYTES * len(live.vectors) / 1e6
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir()
    for each in Stream(live, options, folder).rounds():
        run.note(f"round {len(found) + 1}: {each}")
        found.append(each)
    least = {name: min(each[name] for each in found) for name in found[0]}
    most_mb = max(each["MB"] - each["MB of a build"] for each in found)
    promises = {
        f"recall at least {RECALL_MIN} of a new build": least["recall ratio"] >= RECALL_MIN,
        f"codes scanned at most {SCANNED_MAX} of it": (
            max(each["codes scanned ratio"] for each in found) <= SCANNED_MAX
        ),
        "memory at most that of it and fresh_bytes": most_mb <= fresh_mb,
        f"exact searches find all, default ones {DEFAULT_MIN}": (
            least["exact finds"] == 1 and least["default finds"] >= DEFAULT_MIN
        ),
    }
    tables = {"stream": {f"round {n}": each for n, each in enumerate(found, start=1)}}
    return run.finish(tables, promises=promises, results=found, index=live.index.facts)
