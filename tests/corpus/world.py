"""A corpus in small: logs of documents and vectors, compaction, an indexer, savers, searchers.

The searchers fold and search with the product's code, over a base in memory. What they find is
compared with a dict of all documents at the position that they state.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from random import Random

import numpy as np

from carpool.arrays import Bool, Float32, Int64
from carpool.clock import SystemClock
from carpool.codes.int4 import CodeScanner, Encoder, code_layout
from carpool.corpus.bases import Bases
from carpool.corpus.fold import Fold
from carpool.corpus.follower import Received, fold_all
from carpool.digest import digest_of
from carpool.telemetry.metrics import Metrics
from schemas.document import Base, DocumentVectors, IndexedPassage
from schemas.record import ClusterId, Source
from schemas.topics import VECTORS
from searcher.codes.coded_rows import CodedRows
from searcher.codes.executor import CodesExecutor
from searcher.codes.load import ResidentCodes
from searcher.executor import Search, SearchGroup, SearchResult
from searcher.fresh.corpus import LiveCorpus
from searcher.fresh.rows import FreshRows
from searcher.fresh.scans import FreshScans
from searcher.row_source import RowsRead
from searcher.snapshot import Snapshot
from searcher.store.waker import Waker

DIMENSION, NLIST, PARTITIONS = 8, 3, 2
KEYS = [f"d{number}".encode() for number in range(5)]
LAG = 20
"""Moments that a record waits before a compaction may remove it."""
FRESH_BYTES = 6_000
"""Few: rows are rewritten without the hidden ones again and again."""
MODEL = "m"
ROTATION = np.ascontiguousarray(np.eye(DIMENSION)[::-1], np.float32)


@dataclass(frozen=True)
class Revision:
    """A revision of a document: the texts of its passages with their vectors; None: deleted."""

    texts: tuple[str, ...]
    vectors: Float32
    is_bad: bool = False


@dataclass(frozen=True)
class Entry:
    """A record of a log. `moment`: when it was appended."""

    offset: int
    key: bytes
    value: Revision | DocumentVectors | None
    moment: int


@dataclass
class Log:
    """A partition of a compacted topic."""

    entries: list[Entry] = field(default_factory=list)
    end: int = 0

    def append(self, key: bytes, value: Revision | DocumentVectors | None, moment: int) -> int:
        self.entries.append(Entry(self.end, key, value, moment))
        self.end += 1
        return self.end - 1

    def compact(self, now: int) -> None:
        """Keeps the newest record of each key among the old ones, and young records.

        Nulls stay: the indexer is never away for as long as brokers keep them.
        """
        old = [entry for entry in self.entries if entry.moment <= now - LAG]
        newest = {entry.key: entry.offset for entry in old}
        self.entries = [
            entry
            for entry in self.entries
            if entry.moment > now - LAG or newest[entry.key] == entry.offset
        ]

    def after(self, offset: int, count: int) -> list[Entry]:
        return [entry for entry in self.entries if entry.offset >= offset][:count]


class MemoryBase:
    """A base: implements `BaseRows` and `RowVectors`."""

    waiting, times_out_at_us = 0, None

    def __init__(self, documents: Mapping[bytes, Revision], centroids: Float32) -> None:
        self.documents = documents
        self.centroids = centroids
        self.nlist = NLIST + 1
        self.texts = [text for one in documents.values() for text in one.texts]
        none = np.empty((0, DIMENSION), np.float32)
        vectors = np.concatenate([none, *(one.vectors for one in documents.values())])
        clusters = own_clusters(vectors, centroids)
        self._order = np.argsort(clusters, kind="stable")  # passage of each row
        self.vectors, self.clusters = vectors[self._order], clusters[self._order]
        self._row_of = np.argsort(self._order)
        self._ranges: dict[bytes, range] = {}
        at = 0
        for key, one in documents.items():
            self._ranges[digest_of(key)] = range(at, at + len(one.texts))
            at += len(one.texts)
        self._wanted: list[tuple[Int64, Int64]] = []

    def passages_of(self, key: bytes) -> range:
        return self._ranges.get(key, range(0))

    def rows_of(self, passages: range) -> Int64:
        return self._row_of[passages.start : passages.stop]

    def text_of(self, row: int) -> str:
        return self.texts[int(self._order[row])]

    def codes(self) -> ResidentCodes:
        layout = code_layout(DIMENSION)
        with_zero = np.concatenate([self.centroids, np.zeros((1, DIMENSION), np.float32)])
        counts = np.bincount(self.clusters, minlength=self.nlist)
        firsts = np.cumsum([0, *counts[:-1]])
        scanner = CodeScanner(layout, with_zero, ROTATION, firsts, counts)
        encoder = Encoder(layout, with_zero, ROTATION)
        for cluster in range(self.nlist):
            own = self.vectors[firsts[cluster] :][: counts[cluster]]
            if len(own):
                scanner.load(cluster, np.frombuffer(encoder.encode(cluster, own), np.uint8))
        return ResidentCodes(scanner, firsts, counts, {})

    def clusters_of(self, rows: Int64) -> Int64:
        return np.array([self.clusters[row] if row < len(self.clusters) else -1 for row in rows])

    def add(self, owners: Int64, rows: Int64) -> None:
        self._wanted.append((owners, rows))

    def advance(self, are_wanted: Callable[[Int64], Bool]) -> list[RowsRead]:
        wanted, self._wanted = self._wanted, []
        return [
            RowsRead(owners, rows, self.vectors[rows], (), dict.fromkeys(owners.tolist(), 0))
            for owners, rows in wanted
        ]

    def pending(self) -> dict[int, int]:
        return {}

    def check_integrity(self) -> None:
        return


def own_clusters(vectors: Float32, centroids: Float32) -> Int64:
    """The cluster of each row, by this test's own reading of ADR 0031: the zero cluster is last."""
    if not len(vectors):
        return np.empty(0, np.int64)
    nearest = (vectors @ centroids.T).argmax(axis=1)
    distances = ((vectors - centroids[nearest]) ** 2).sum(axis=1)
    return np.where(distances > 1.28, NLIST, nearest)


class Searcher:
    """A searcher that has opened a base, and reads on from there."""

    def __init__(self, base: MemoryBase, facts: Base) -> None:
        self.base, self.facts = base, facts
        self.fold = Fold(base, facts.position)
        fresh = FreshRows(
            base.centroids, ROTATION, first_row=len(base.texts), limit_bytes=FRESH_BYTES
        )
        self._metrics = Metrics()
        self.corpus = LiveCorpus(
            self.fold,
            base,
            fresh,
            name=facts.name,
            embedding_model=MODEL,
            metrics=self._metrics,
        )
        self.next = dict(facts.vectors)
        self.position: Mapping[int, int] = {}
        self.is_ready = False
        self._ends: dict[int, int] = {}

    def open(self, logs: Sequence[Log], *, waits: bool = True) -> None:
        """Notes the ends that the logs have now: searches wait for them."""
        for partition, log in enumerate(logs):
            self.next.setdefault(partition, 0)
            self._ends[partition] = log.end if waits else 0
            self.fold.begin(partition)
            self._see_end(partition, log)
        self._reach()

    def read(self, partition: int, log: Log, count: int, now: int) -> None:
        """Folds the next records."""
        entries = log.after(self.next[partition], count)
        records = list[Received]()
        for entry in entries:
            assert isinstance(entry.value, DocumentVectors)
            is_old = entry.moment < now - LAG // 2
            records.append(Received(entry.key, entry.value, place(partition, entry), is_old))
        folded = fold_all(self.corpus, records)
        for entry in entries[:folded]:
            self.next[partition] = entry.offset + 1
        if folded < len(entries):
            return
        self._see_end(partition, log)
        self._reach()

    def _see_end(self, partition: int, log: Log) -> None:
        if not log.after(self.next[partition], 1):
            self.next[partition] = log.end
            self.fold.reached_end(partition)

    def _reach(self) -> None:
        for partition, end in list(self._ends.items()):
            if self.next[partition] >= end:
                del self._ends[partition]
        if not self._ends and self.corpus.publish():
            self.is_ready = True

    def search(
        self, snapshot: Snapshot, query: Float32, clusters: Sequence[int], top_k: int
    ) -> list[tuple[str, float]]:
        """Returns the texts that are found, with their scores."""
        waker, clock = Waker(), SystemClock()
        executor = CodesExecutor(
            sources=[CodedRows(self.base.codes(), clock)],
            fresh=FreshScans(clock),
            rows=self.base,
            waker=waker,
            metrics=self._metrics,
            clock=clock,
        )
        search = Search(
            key=0,
            vector=query,
            clusters=tuple(map(ClusterId, (*clusters, NLIST))),
            top_k=top_k,
            snapshot=snapshot,
        )
        found: list[SearchResult] = []
        executor.join(SearchGroup(searches=(search,)))
        executor.stop()
        executor.run(lambda _, result: found.append(result) if result else None)
        waker.close()
        (result,) = found
        rows = result.best.rows.tolist()
        fresh = snapshot.fresh
        texts = [
            fresh.passages([row])[0].text
            if fresh is not None and row >= fresh.rows.first_row
            else self.base.text_of(row)
            for row in rows
        ]
        return list(zip(texts, result.best.scores.tolist(), strict=True))


class Saver:
    """Folds the vectors over the current base, and saves what it has, which takes some time."""

    def __init__(self, base: MemoryBase, facts: Base) -> None:
        self.follow(base, facts)

    def follow(self, base: MemoryBase, facts: Base) -> None:
        """Begins with a base."""
        self.facts, self.base = facts, base
        self.cut: Base | None = None  # saved, and not announced
        self.fold = Fold(base, facts.position)
        self.next = dict(facts.vectors)
        self.documents = dict(base.documents)

    def read(self, logs: Sequence[Log], now: int) -> None:
        """Folds all there is."""
        from carpool.corpus.fold import Revision as Step

        for partition, log in enumerate(logs):
            for entry in log.after(self.next.get(partition, 0), 1_000):
                record = entry.value
                assert isinstance(record, DocumentVectors)
                is_old = entry.moment < now - LAG // 2
                revision = Step(
                    partition,
                    record.offset,
                    digest_of(entry.key),
                    len(record.passages),
                    1,
                    is_behind=record.is_behind,
                    is_old=is_old,
                )
                if not self.fold.repeats(partition, record.offset):
                    self.documents.pop(entry.key, None)
                    if record.passages:
                        self.documents[entry.key] = as_revision(record)
                self.fold.step(revision)
            self.next[partition] = log.end
            self.fold.reached_end(partition)

    def saved(self, name: str) -> Base:
        """Returns what is announced of what was folded."""
        return Base(
            name=name,
            index_version="v",
            folder=name,
            predecessor=self.facts.name,
            position=self.fold.position,
            vectors=dict(self.next),
        )


def as_revision(record: DocumentVectors) -> Revision:
    vectors = np.frombuffer(record.vectors, "<f2").reshape(-1, DIMENSION).astype(np.float32)
    return Revision(tuple(passage.text for passage in record.passages), vectors)


def as_vectors(offset: int, revision: Revision | None, *, is_behind: bool) -> DocumentVectors:
    """What the indexer writes for a revision."""
    if revision is None:
        return DocumentVectors(offset=offset, is_behind=is_behind, deleted=True)
    if revision.is_bad:
        return DocumentVectors(offset=offset, is_behind=is_behind, refused="it is bad")
    return DocumentVectors(
        offset=offset,
        is_behind=is_behind,
        embedding_model=MODEL,
        passages=tuple(IndexedPassage(text=text) for text in revision.texts),
        vectors=revision.vectors.astype("<f2").tobytes(),
    )


def place(partition: int, entry: Entry) -> Source:
    return Source(topic=VECTORS.name, partition=partition, offset=entry.offset)


def partition_of(key: bytes) -> int:
    return KEYS.index(key) % PARTITIONS


@dataclass(frozen=True)
class Faults:
    """What the world itself does wrong; the product's faults are patched in by a test."""

    loses_refusals: bool = False
    repeats: bool = False
    begins_early: int = 0


class World:
    """Runs random events, and checks every search. Raises `AssertionError` for a wrong one."""

    def __init__(self, seed: int, faults: Faults = Faults()) -> None:
        self.random = Random(seed)
        self.numbers = np.random.default_rng(seed)
        self.faults = faults
        self.now = 0
        self.history: list[list[Entry]] = [[] for _ in range(PARTITIONS)]
        self.documents = [Log() for _ in range(PARTITIONS)]
        self.vectors = [Log() for _ in range(PARTITIONS)]
        self.indexed = [0] * PARTITIONS  # next offset of each partition of documents
        centroids = self.directions(NLIST)
        empty = MemoryBase({}, centroids)
        self.bases = Bases()
        self.saved: dict[str, MemoryBase] = {"b0": empty}
        facts = Base(name="b0", index_version="v", folder="b0", position={}, vectors={})
        self.bases.announced(facts)
        self.searchers: list[Searcher] = []
        self.held: list[tuple[Searcher, Snapshot]] = []
        for _ in range(2):
            self.start_searcher()
        self.savers = [Saver(empty, facts)]
        self.revisions = 0

    def directions(self, count: int) -> Float32:
        """Vectors of length 1 that float16 has exactly enough of: eighths, then normalised."""
        found = self.numbers.standard_normal((count, DIMENSION))
        found /= np.linalg.norm(found, axis=1, keepdims=True)
        return found.astype(np.float16).astype(np.float32)

    # ---- events

    def put(self) -> None:
        """A put, a delete, or a bad document."""
        key, kind = self.random.choice(KEYS), self.random.random()
        self.revisions += 1
        value: Revision | None = None
        if kind < 0.75:
            count = self.random.randint(1, 3)
            texts = tuple(f"{key.decode()}.{self.revisions}.{number}" for number in range(count))
            value = Revision(texts, self.directions(count), is_bad=kind < 0.1)
        log = self.documents[partition_of(key)]
        offset = log.append(key, value, self.now)
        self.history[partition_of(key)].append(Entry(offset, key, value, self.now))

    def index(self) -> None:
        """The indexer goes on, in the order of a partition; sometimes it has lost its position.

        It then reads documents again, and writes none that the vectors have.
        """
        partition = self.random.randrange(PARTITIONS)
        log = self.documents[partition]
        if self.random.random() < 0.15:
            self.indexed[partition] = max(0, self.indexed[partition] - self.random.randint(1, 3))
        written = -1 if self.faults.repeats else self.position_of_vectors(partition)
        entries = log.after(self.indexed[partition], self.random.randint(1, 5))
        for entry in entries:
            waits = bool(log.after(entry.offset + 1, 1))
            is_behind = waits and entry.moment < self.now - LAG // 2
            assert entry.value is None or isinstance(entry.value, Revision)
            record = as_vectors(entry.offset, entry.value, is_behind=is_behind)
            self.indexed[partition] = entry.offset + 1
            if entry.offset <= written or (self.faults.loses_refusals and record.refused):
                continue
            self.vectors[partition].append(entry.key, record, self.now)

    def position_of_vectors(self, partition: int) -> int:
        """The offset of the document of the last record."""
        entries = self.vectors[partition].entries
        if not entries:
            return -1
        assert isinstance(entries[-1].value, DocumentVectors)
        return entries[-1].value.offset

    def compact(self) -> None:
        for log in (*self.documents, *self.vectors):
            log.compact(self.now)

    def wait(self) -> None:
        self.now += self.random.choice((1, 1, 1, LAG // 2, 2 * LAG))

    def start_searcher(self) -> None:
        facts = self.bases.current
        assert facts is not None
        base = self.saved[facts.name]
        early = self.faults.begins_early
        if early:
            vectors = {each: max(0, at - early) for each, at in facts.vectors.items()}
            facts = Base(
                name=facts.name,
                index_version="v",
                folder="",
                position={each: max(0, at - early) for each, at in facts.position.items()},
                vectors=vectors,
            )
        searcher = Searcher(base, facts)
        searcher.open(self.vectors, waits=not early)
        self.searchers.append(searcher)
        self.searchers = self.searchers[-2:]

    def read(self) -> None:
        searcher = self.random.choice(self.searchers)
        partition = self.random.randrange(PARTITIONS)
        log = self.vectors[partition]
        searcher.read(partition, log, self.random.randint(1, 6), self.now)
        self.check_position(searcher)

    def save(self) -> None:
        """A saver saves, or another one begins, which may lose."""
        facts = self.bases.current
        assert facts is not None
        if self.random.random() < 0.5:
            self.savers.append(Saver(self.saved[facts.name], facts))
        saver = self.random.choice(self.savers)
        if saver.cut is None:
            saver.read(self.vectors, self.now)
            if not saver.fold.is_behind:
                name = f"b{len(self.saved)}"
                saver.cut = saver.saved(name)
                self.saved[name] = MemoryBase(dict(saver.documents), saver.base.centroids)
        elif self.bases.announced(saver.cut):
            assert all(
                saver.cut.position.get(each, -1) >= at for each, at in facts.position.items()
            ), "the current base went back"
            saver.follow(self.saved[saver.cut.name], saver.cut)
        else:
            saver.follow(self.saved[facts.name], facts)

    def swap(self) -> None:
        """A searcher opens the current base, reads on, and the old one goes."""
        facts = self.bases.current
        assert facts is not None
        for at, searcher in enumerate(self.searchers):
            if searcher.is_ready and searcher.facts.name != facts.name:
                new = Searcher(self.saved[facts.name], facts)
                new.open(self.vectors)
                for partition, log in enumerate(self.vectors):
                    new.read(partition, log, 1_000, self.now)
                if new.is_ready:
                    new.position = searcher.position
                    self.check_position(new)
                    self.searchers[at] = new
                    return

    def hold(self) -> None:
        """A search begins: it keeps what it sees."""
        ready = [searcher for searcher in self.searchers if searcher.is_ready]
        if ready:
            searcher = self.random.choice(ready)
            self.held.append((searcher, searcher.corpus.snapshot))

    def search(self) -> None:
        """A search that began some time ago ends."""
        self.hold()
        if self.held:
            self.check(*self.held.pop(self.random.randrange(len(self.held))))

    # ---- checks

    def check_position(self, searcher: Searcher) -> None:
        position, before = searcher.corpus.snapshot.corpus.position, searcher.position
        assert all(position.get(each, -1) >= at for each, at in before.items()), "it went back"
        searcher.position = position

    def truth(self, position: Mapping[int, int]) -> dict[bytes, Revision]:
        """The documents at a position, of what was published and never compacted."""
        found: dict[bytes, Revision] = {}
        for partition, entries in enumerate(self.history):
            for entry in entries:
                if entry.offset > position.get(partition, -1):
                    break
                found.pop(entry.key, None)
                if isinstance(entry.value, Revision) and not entry.value.is_bad:
                    found[entry.key] = entry.value
        return found

    def check(self, searcher: Searcher, snapshot: Snapshot) -> None:
        """Compares a search of a snapshot with the truth at its position."""
        documents = self.truth(snapshot.corpus.position)
        none = np.empty((0, DIMENSION), np.float32)
        vectors = np.concatenate([none, *(one.vectors for one in documents.values())])
        texts = [text for one in documents.values() for text in one.texts]
        query = self.directions(1)[0]
        clusters = np.argsort(-(searcher.base.centroids @ query))[: self.random.randint(1, 2)]
        own = own_clusters(vectors, searcher.base.centroids)
        seen = np.isin(own, [*clusters.tolist(), NLIST])
        scores = vectors @ query
        expected = {text: scores[at] for at, text in enumerate(texts) if seen[at]}
        found = dict(searcher.search(snapshot, query, clusters.tolist(), 100))
        assert found.keys() == expected.keys(), (snapshot.corpus, found, expected)
        for text, score in found.items():
            assert abs(score - expected[text]) < 1e-5
        few = searcher.search(snapshot, query, clusters.tolist(), 2)
        assert len(few) == min(2, len(expected)) and {text for text, _ in few} <= expected.keys()

    def finish(self) -> None:
        """All is indexed and read: every searcher must be at the end."""
        for _ in range(2):
            for partition, log in enumerate(self.documents):
                while log.after(self.indexed[partition], 1):
                    self.index()
            for searcher in self.searchers:
                for partition, log in enumerate(self.vectors):
                    searcher.read(partition, log, 1_000, self.now)
        for searcher in self.searchers:
            assert searcher.is_ready, "it never became ready"
            position = searcher.corpus.snapshot.corpus.position
            for partition, entries in enumerate(self.history):
                last = entries[-1].offset if entries else -1
                assert position.get(partition, -1) == last, "the position stands still"
            self.check(searcher, searcher.corpus.snapshot)

    def run(self, events: int) -> None:
        """Runs random events."""
        kinds = (
            *(self.put,) * 6,
            *(self.index,) * 6,
            *(self.read,) * 6,
            *(self.search,) * 4,
            *(self.wait,) * 3,
            *(self.hold, self.compact, self.compact, self.swap),
            *(self.save, self.save, self.start_searcher, self.start_searcher),
        )
        for _ in range(events):
            self.random.choice(kinds)()
        self.finish()
