"""One run: a minute of other questions, then batch after batch, each query timed on both clocks."""

from __future__ import annotations

import queue
import threading
from collections.abc import Callable, Iterable
from datetime import UTC, datetime
from functools import partial
from typing import NamedTuple

import numpy as np

from bench.core.machine import this_machine, this_revision
from bench.data.evaluation import Float32
from bench.papers.cagr.outcome import SCHEMA_VERSION, Run, Series, Totals
from bench.papers.cagr.plan import RunSpec
from bench.papers.cagr.questions import Questions, batches, endless
from bench.papers.cagr.rig import Rig, open_rig
from bench.retrieval.kernel import process_read_bytes
from carpool.clock import Clock, SystemClock
from carpool.disk.centroids import probe
from carpool.disk.index import OpenIndex
from carpool.embedding import Embedder
from carpool.errors import ConfigError
from grouper.plan.grouping import grouping_policy
from grouper.plan.order import group_order
from grouper.plan.plan_groups import plan_groups
from schemas.record import ClusterId
from searcher.executor import Search, SearchGroup, SearchResult

WAIT_S = 600.0

Tell = Callable[[str, int, int], None]
"""Is told the phase (`warming up`, `measuring`), and how much of how much of it is done: seconds,
queries.
"""


class _Answer(NamedTuple):
    found: SearchResult
    ended_us: int
    held_bytes: int


class _Asked(NamedTuple):
    """A query of a batch, before it is searched."""

    vector: Float32
    clusters: tuple[ClusterId, ...]
    encode_us: int


class _Row(NamedTuple):
    """A query after it was searched; see `Series`."""

    batch: int
    group: int
    encode_us: int
    load_us: int
    search_us: int
    batch_us: int
    hits: int
    read_bytes: int
    probed_bytes: int
    held_bytes: int


class Runner:
    """Asks batches of texts of one rig. `index` and `embedder` belong to the caller, as does the
    rig.
    """

    def __init__(
        self, spec: RunSpec, rig: Rig, index: OpenIndex, embedder: Embedder, clock: Clock
    ) -> None:
        self._spec, self._rig, self._index, self._embedder, self._clock = (
            spec,
            rig,
            index,
            embedder,
            clock,
        )
        self._answers: queue.SimpleQueue[tuple[int, _Answer] | BaseException] = queue.SimpleQueue()
        self._next_key = 0
        self._batch = self._group = 0
        self.grouping_us = 0
        is_grouped = spec.similarity_min is not None
        self._policy = grouping_policy(
            "greedy" if is_grouped else "per_query",
            jaccard_similarity_min=spec.similarity_min or 0.0,
            linkage="single",
        )
        self._order = group_order("arrival")
        self._thread = threading.Thread(target=self._search, name="search", daemon=True)
        self._thread.start()

    @property
    def groups(self) -> int:
        """Groups searched so far."""
        return self._group

    def ask(self, texts: Iterable[str]) -> list[_Row]:
        """Searches a batch and returns its queries in their order. Blocks. Raises what the search
        thread raises.
        """
        arrived_us = self._clock.now_us()
        asked = [self._encode(text) for text in texts]
        began_us = self._clock.now_us()
        groups = self._groups(asked)
        self.grouping_us += self._clock.now_us() - began_us
        first_key = self._next_key
        for group, following in zip(groups, [*groups[1:], ()], strict=True):
            next_query = asked[following[0]].clusters if following else ()
            self._rig.executor.join(self._search_group(asked, group, first_key, next_query))
        self._next_key += len(asked)
        answers = dict(self._take() for _ in asked)
        group_of = {
            member: number
            for number, group in enumerate(groups, start=self._group)
            for member in group
        }
        rows = [
            self._row(group_of[member], query, answers[first_key + member], arrived_us)
            for member, query in enumerate(asked)
        ]
        self._batch += 1
        self._group += len(groups)
        return rows

    def close(self) -> None:
        """Ends the search thread; the rig can be closed after that."""
        self._rig.executor.stop()
        self._thread.join(WAIT_S)

    def _encode(self, text: str) -> _Asked:
        """Embeds and probes one question alone: steps 1 and 2 of the paper's listing, section
        2.2.
        """
        began_us = self._clock.now_us()
        vector = self._embedder.encode([text])
        clusters = probe(self._index.centroids, vector, self._spec.nprobe)[0]
        return _Asked(
            vector[0], tuple(map(ClusterId, clusters.tolist())), self._clock.now_us() - began_us
        )

    def _groups(self, asked: list[_Asked]) -> tuple[tuple[int, ...], ...]:
        """Positions in search order. `carpool` takes a batch whole, as it comes."""
        if self._spec.method == "carpool":
            return (tuple(range(len(asked))),)
        clusters = [query.clusters for query in asked]
        return plan_groups(
            clusters, before=(), deadlines=(), policy=self._policy, order=self._order
        )

    def _search_group(
        self,
        asked: list[_Asked],
        group: tuple[int, ...],
        first_key: int,
        next_query: tuple[ClusterId, ...],
    ) -> SearchGroup:
        searches = tuple(
            Search(
                key=first_key + member,
                vector=asked[member].vector,
                clusters=asked[member].clusters,
                top_k=self._spec.top_k,
            )
            for member in group
        )
        # Advice for whoever prefetches: the baselines that do not are not told.
        advice = next_query if self._spec.method == "cagr-qgp" else ()
        return SearchGroup(searches=searches, window=self._batch, next_query=advice)

    def _search(self) -> None:
        def finish(search: Search, found: SearchResult | None) -> None:
            assert found is not None, "no query here has a deadline"
            self._answers.put(
                (search.key, _Answer(found, self._clock.now_us(), self._rig.memory.used_bytes))
            )

        try:
            self._rig.executor.run(finish)
        except BaseException as error:  # told by the thread that waits
            self._answers.put(error)

    def _take(self) -> tuple[int, _Answer]:
        item = self._answers.get(timeout=WAIT_S)
        if isinstance(item, BaseException):
            raise item
        return item

    def _row(self, group: int, query: _Asked, answer: _Answer, arrived_us: int) -> _Row:
        found = answer.found
        if found.skipped:
            raise ConfigError(
                f"clusters {found.skipped} could not be read: {found.errors}; check the index: "
                "carpool index verify"
            )
        return _Row(
            batch=self._batch,
            group=group,
            encode_us=query.encode_us,
            load_us=found.load_us,
            search_us=found.search_us,
            batch_us=answer.ended_us - arrived_us,
            hits=sum(probed.tier == "ram" for probed in found.probes),
            read_bytes=found.bytes_read,
            probed_bytes=sum(self._index.extents[cluster].size_bytes for cluster in query.clusters),
            held_bytes=answer.held_bytes,
        )


def make_run(
    spec: RunSpec, index: OpenIndex, embedder: Embedder, questions: Questions, tell: Tell
) -> Run:
    """Warms up, measures, and returns what was measured. Blocks. Raises `ConfigError` where the
    index does not fit.

    What is read is read past the page cache, so that nothing needs dropping; the cache under test
    is what warms up.
    """
    started, clock = datetime.now(UTC).isoformat(timespec="seconds"), SystemClock()
    rig = open_rig(spec, index, clock)
    try:
        runner = Runner(spec, rig, index, embedder, clock)
        try:
            warm_up_queries, warm_up_us = _warm_up(spec, runner, questions, clock, tell)
            before = _look(rig, runner, clock)
            rows: list[_Row] = []
            rng = np.random.default_rng(spec.seed)
            for batch in batches(
                questions.measured, batch_min=spec.batch_min, batch_max=spec.batch_max, rng=rng
            ):
                rows.extend(runner.ask(batch))
                tell("measuring", len(rows), len(questions.measured))
            after = _look(rig, runner, clock)
        finally:
            runner.close()
        rig.check()
    finally:
        rig.close()
    held = np.array([row.held_bytes for row in rows])
    used = {name: after[name] - before[name] for name in after}
    totals = Totals(
        held_bytes=int(held.mean()),
        held_bytes_max=int(held.max()),
        warm_up_queries=warm_up_queries,
        warm_up_us=warm_up_us,
        **used,
    )
    return Run(
        schema_version=SCHEMA_VERSION,
        spec=spec,
        index_version=index.manifest.index_version,
        limit=rig.limit,
        started=started,
        machine=this_machine(),
        revision=this_revision(),
        batch_sizes=tuple(np.unique([row.batch for row in rows], return_counts=True)[1].tolist()),
        totals=totals,
        series=Series(
            **{name: tuple(getattr(row, name) for row in rows) for name in Series.__struct_fields__}
        ),
    )


def _warm_up(
    spec: RunSpec, runner: Runner, questions: Questions, clock: Clock, tell: Tell
) -> tuple[int, int]:
    """Asks other questions for a minute (section 4.1), whole batches; returns how many, and how
    long it took.
    """
    began_us, asked = clock.now_us(), 0
    rng = np.random.default_rng([spec.seed, 1])
    for batch in endless(
        questions.warm_up, batch_min=spec.batch_min, batch_max=spec.batch_max, rng=rng
    ):
        took_us = clock.now_us() - began_us
        tell("warming up", min(int(took_us / 1e6), int(spec.warm_up_s)), int(spec.warm_up_s))
        if took_us >= spec.warm_up_s * 1e6:
            break
        asked += len(runner.ask(batch))
    return asked, clock.now_us() - began_us


def _look(rig: Rig, runner: Runner, clock: Clock) -> dict[str, int]:
    count = partial(rig.metrics.registry.get_sample_value, "carpool_bytes_read_total")
    demanded, prefetched = (
        int(count({"purpose": purpose}) or 0) for purpose in ("demand", "prefetch")
    )
    return {
        "duration_us": clock.now_us(),
        "bytes_read": demanded + prefetched,
        "prefetched_bytes": prefetched,
        "kernel_bytes": process_read_bytes(),
        "prefetch_us": rig.prefetch_us(),
        "grouping_us": runner.grouping_us,
        "groups": runner.groups,
    }
