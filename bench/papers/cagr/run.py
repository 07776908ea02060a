"""One run: other questions to warm up, then batch after batch, each query timed on both clocks."""

from __future__ import annotations

from collections.abc import Iterable
from datetime import UTC, datetime
from itertools import cycle
from typing import NamedTuple

import numpy as np

from bench.baselines.groups import groups_of
from bench.core.machine import this_machine, this_revision
from bench.core.plane_counts import bytes_read
from bench.core.progress import Tell
from bench.data.evaluation import Float32
from bench.papers.cagr.engine import FigureEngine, open_engine_of
from bench.papers.cagr.outcome import FigureRun, RunTotals, Series
from bench.papers.cagr.plan import RunSpec
from bench.papers.cagr.questions import FigureQuestions, batches
from bench.retrieval.kernel import process_read_bytes
from carpool.clock import Clock, SystemClock
from carpool.disk.centroids import probe
from carpool.disk.index import OpenIndex
from carpool.embedding import Embedder
from carpool.errors import ConfigError
from schemas.record import ClusterId
from searcher.executor import Search, SearchGroup, SearchResult
from searcher.local import SearchThread

WAIT_S = 600.0


class _Encoded(NamedTuple):
    """A query of a batch, before it is searched."""

    vector: Float32
    clusters: tuple[ClusterId, ...]
    encode_us: int


class _Answer(NamedTuple):
    found: SearchResult
    ended_us: int
    used_bytes: int


class FigureRunner:
    """Asks batches of texts. Owns `engine`; `index` and `embedder` belong to the caller."""

    def __init__(
        self, spec: RunSpec, engine: FigureEngine, index: OpenIndex, embedder: Embedder
    ) -> None:
        self._spec, self.engine, self._index, self._embedder = spec, engine, index, embedder
        self._clock = SystemClock()
        self._thread = SearchThread(engine.plane)
        self._next_key = 0
        self._batch = 0
        self.groups = 0
        self.grouping_us = 0

    def ask(self, texts: Iterable[str]) -> list[dict[str, int]]:
        """Searches a batch and returns a row for each query: see `Series`. Blocks."""
        arrived_us = self._clock.now_us()
        encoded = [self._encode(text) for text in texts]
        began_us = self._clock.now_us()
        groups = self._group(encoded)
        self.grouping_us += self._clock.now_us() - began_us
        first_key = self._next_key
        for group, following in zip(groups, [*groups[1:], ()], strict=True):
            next_query = encoded[following[0]].clusters if following else ()
            self._thread.join(self._search_group(encoded, group, first_key, next_query))
        self._next_key += len(encoded)
        answers = dict(self._take() for _ in encoded)
        group_of = {
            member: number
            for number, group in enumerate(groups, start=self.groups)
            for member in group
        }
        rows = [
            self._row(group_of[member], query, answers[first_key + member], arrived_us)
            for member, query in enumerate(encoded)
        ]
        self._batch += 1
        self.groups += len(groups)
        return rows

    def totals(self) -> dict[str, int]:
        """Returns counters since the start; see `RunTotals`."""
        demanded, prefetched = bytes_read(self.engine.metrics)
        return {
            "duration_us": self._clock.now_us(),
            "bytes_read": demanded + prefetched,
            "prefetched_bytes": prefetched,
            "kernel_bytes": process_read_bytes(),
            "prefetch_us": self.engine.prefetch_us(),
            "grouping_us": self.grouping_us,
            "groups": self.groups,
        }

    def close(self) -> None:
        """Ends the search thread and closes the plane."""
        self._thread.close()

    def _encode(self, text: str) -> _Encoded:
        """Embeds and probes one question: steps 1 and 2 of the paper's listing, section 2.2."""
        began_us = self._clock.now_us()
        vector = self._embedder.encode([text])
        clusters = probe(self._index.centroids, vector, self._spec.nprobe)[0]
        took_us = self._clock.now_us() - began_us
        return _Encoded(vector[0], tuple(map(ClusterId, clusters.tolist())), took_us)

    def _group(self, encoded: list[_Encoded]) -> tuple[tuple[int, ...], ...]:
        """Positions in search order. `carpool` takes a whole batch as one group."""
        if self._spec.method == "carpool":
            return (tuple(range(len(encoded))),)
        return groups_of(
            "per_query" if self._spec.similarity_min is None else "greedy",
            [query.clusters for query in encoded],
            self._spec.similarity_min or 0.0,
        )

    def _search_group(
        self,
        encoded: list[_Encoded],
        group: tuple[int, ...],
        first_key: int,
        next_query: tuple[ClusterId, ...],
    ) -> SearchGroup:
        searches = tuple(
            Search(
                key=first_key + member,
                vector=encoded[member].vector,
                clusters=encoded[member].clusters,
                top_k=self._spec.top_k,
            )
            for member in group
        )
        advice = next_query if self._spec.method == "cagr-qgp" else ()  # only it prefetches
        return SearchGroup(searches=searches, window=self._batch, next_query=advice)

    def _take(self) -> tuple[int, _Answer]:
        search, found = self._thread.take(WAIT_S)
        assert found is not None, "no query here has a deadline"
        if found.skipped:
            raise ConfigError(
                f"clusters {found.skipped} could not be read: {found.errors}; check the index: "
                "carpool index verify"
            )
        used_bytes = self.engine.plane.memory.used_bytes
        return search.key, _Answer(found, self._clock.now_us(), used_bytes)

    def _row(self, group: int, query: _Encoded, answer: _Answer, arrived_us: int) -> dict[str, int]:
        found = answer.found
        return {
            "batch": self._batch,
            "group": group,
            "encode_us": query.encode_us,
            "load_us": found.load_us,
            "search_us": found.search_us,
            "batch_us": answer.ended_us - arrived_us,
            "hits": sum(probed.tier == "ram" for probed in found.probes),
            "read_bytes": found.bytes_read,
            "probed_bytes": sum(
                self._index.extents[cluster].size_bytes for cluster in query.clusters
            ),
            "used_bytes": answer.used_bytes,
        }


def make_run(
    spec: RunSpec, index: OpenIndex, embedder: Embedder, questions: FigureQuestions, tell: Tell
) -> FigureRun:
    """Warms up, measures, and returns what was measured. Blocks.

    Clusters are read past the page cache, so only the cache under test warms up. Raises
    `ConfigError` where the index does not fit.
    """
    started = datetime.now(UTC).isoformat(timespec="seconds")
    runner = FigureRunner(spec, open_engine_of(spec, index, SystemClock()), index, embedder)
    try:
        warm_up_queries, warm_up_us = _warm_up(spec, runner, questions, tell)
        before = runner.totals()
        rows: list[dict[str, int]] = []
        rng = np.random.default_rng(spec.seed)
        for batch in batches(
            questions.measured, batch_min=spec.batch_min, batch_max=spec.batch_max, rng=rng
        ):
            rows.extend(runner.ask(batch))
            tell(f"{spec.name}: measuring", len(rows), len(questions.measured))
        after = runner.totals()
    finally:
        runner.close()
    return FigureRun(
        spec=spec,
        index_version=index.manifest.index_version,
        limit=runner.engine.limit,
        started=started,
        machine=this_machine(),
        revision=this_revision(),
        batch_sizes=tuple(
            np.unique([row["batch"] for row in rows], return_counts=True)[1].tolist()
        ),
        totals=RunTotals(
            used_bytes_mean=int(np.mean([row["used_bytes"] for row in rows])),
            used_bytes_max=max(row["used_bytes"] for row in rows),
            warm_up_queries=warm_up_queries,
            warm_up_us=warm_up_us,
            **{name: after[name] - before[name] for name in after},
        ),
        series=Series(
            **{name: tuple(row[name] for row in rows) for name in Series.__struct_fields__}
        ),
    )


def _warm_up(
    spec: RunSpec, runner: FigureRunner, questions: FigureQuestions, tell: Tell
) -> tuple[int, int]:
    """Asks whole batches of other questions for a minute (section 4.1).

    Returns how many questions, and how long it took.
    """
    clock: Clock = SystemClock()
    began_us, asked = clock.now_us(), 0
    rng = np.random.default_rng([spec.seed, 1])
    for batch in batches(
        cycle(questions.warm_up), batch_min=spec.batch_min, batch_max=spec.batch_max, rng=rng
    ):
        took_us = clock.now_us() - began_us
        if took_us >= spec.warm_up_s * 1e6:
            break
        tell(f"{spec.name}: warming up", int(took_us / 1e6), int(spec.warm_up_s))
        asked += len(runner.ask(batch))
    return asked, clock.now_us() - began_us
