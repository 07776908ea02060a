"""One run: other questions to warm up, then batch after batch, each query timed on both clocks."""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from itertools import cycle, islice
from typing import NamedTuple

import msgspec
import numpy as np

from bench.core.spread import Spread, spread
from bench.data.evaluation import EvaluationData
from bench.data.oracles import Int32, static_oracle_bytes
from bench.papers.cagr.method import Answer, Batch, Method
from bench.search.kernel import agrees, process_read_bytes
from carpool.disk.centroids import probe
from carpool.disk.index import OpenIndex
from carpool.embedding import Embedder
from carpool.errors import ConfigError

FILES = {"nq": "queries-nq", "hotpotqa": "queries-hotpotqa", "fever": "claims-fever"}
"""The file of each dataset. The passages are those of the index."""
WARM_UP_SHARE_MIN = 0.25
BATCH_MIN, BATCH_MAX, TOP_K = 20, 100, 10
"""Section 4.1, Traffic."""


class RunFigures(msgspec.Struct, frozen=True, kw_only=True):
    """What a run measured.

    `query_ms`: on the paper's clock (section 4.1), from encoding the query to its top-k; None where
    queries share their time. `batch_ms`: on the asker's clock, from the arrival of the batch.
    `hits`: the mean share of clusters found in memory; `hits_least`: of one query. `prefetched`:
    the share of the bytes. `groups`: in a batch.
    """

    query_ms: Spread | None
    batch_ms: Spread | None
    hits: float
    hits_least: float
    bytes_a_query: float
    prefetched: float
    oracle_bytes_a_query: float
    groups: float
    queries_per_s: float
    bytes_agree: bool


class Measured(NamedTuple):
    """An answer with the time of encoding its query, and the time since its batch arrived."""

    answer: Answer
    encode_us: int
    batch_us: int


def load_questions(
    data: EvaluationData, dataset: str, queries: int
) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """Returns the first `queries` distinct texts to measure, and the rest to warm up with.

    The rest is at least a quarter. Raises `ConfigError` for a file that is missing or too small.
    """
    name = FILES[dataset]
    texts = tuple(dict.fromkeys(each.text for each in data.questions(name) if each.text))
    count = min(queries, int(len(texts) * (1 - WARM_UP_SHARE_MIN)))
    if count < 3:
        raise ConfigError(f"{name} has {len(texts)} questions, too few: name another --data")
    return texts[:count], texts[count:]


def batches(texts: Iterable[str], rng: np.random.Generator) -> Iterator[tuple[str, ...]]:
    """Yields `texts` in batches of a random size, both bounds included (section 4.1, Traffic)."""
    rest = iter(texts)
    while batch := tuple(islice(rest, int(rng.integers(BATCH_MIN, BATCH_MAX + 1)))):
        yield batch


@dataclass(frozen=True)
class Asker:
    """A method and what it is asked. The caller closes the method.

    Clusters are read past the page cache, so only the cache of the method warms up.
    """

    method: Method
    index: OpenIndex
    embedder: Embedder
    nprobe: int

    def warm_up(self, texts: Iterable[str], rng: np.random.Generator, seconds: float) -> None:
        """Asks whole batches of `texts`, repeatedly, for so long. Blocks."""
        until_us = _now_us() + seconds * 1e6
        for batch in batches(cycle(texts), rng):
            if _now_us() >= until_us:
                return
            self._ask(batch)

    def measure(
        self, texts: Iterable[str], rng: np.random.Generator, oracle_entries: int
    ) -> RunFigures:
        """Asks every text once, in batches. Blocks. The oracle keeps so many mean clusters."""
        before, began_us = self._counts(), _now_us()
        asked = [self._ask(batch) for batch in batches(texts, rng)]
        took_us = _now_us() - began_us
        counts = zip(self._counts(), before, strict=True)
        read, ahead, groups, kernel = (after - count for after, count in counts)
        measured = [one for answers, _ in asked for one in answers]
        count = len(measured)
        hits = [one.answer.hits / self.nprobe for one in measured]
        sizes = np.array([extent.size_bytes for extent in self.index.extents], np.int64)
        budget_bytes = int(sizes.mean() * oracle_entries)
        oracle_bytes = static_oracle_bytes((probes for _, probes in asked), sizes, budget_bytes)
        return RunFigures(
            query_ms=spread(
                (one.encode_us + one.answer.own_us) / 1e3
                for one in measured
                if one.answer.own_us is not None
            ),
            batch_ms=spread(one.batch_us / 1e3 for one in measured),
            hits=float(np.mean(hits)),
            hits_least=min(hits),
            bytes_a_query=read / count,
            prefetched=ahead / max(1, read),
            oracle_bytes_a_query=oracle_bytes / count,
            groups=groups / len(asked),
            queries_per_s=count / took_us * 1e6,
            bytes_agree=agrees(kernel, read),
        )

    def _ask(self, texts: tuple[str, ...]) -> tuple[list[Measured], Int32]:
        """Embeds and probes one by one (section 2.2, steps 1 and 2), then searches."""
        arrived_us = _now_us()
        vectors, probes, encode_us = [], [], []
        for text in texts:
            began_us = _now_us()
            vectors.append(self.embedder.encode([text])[0])
            probes.append(probe(self.index.centroids, vectors[-1][None], self.nprobe)[0])
            encode_us.append(_now_us() - began_us)
        batch = Batch(np.stack(vectors), np.stack(probes), TOP_K)
        answers = [
            Measured(answer, encode_us[answer.query], _now_us() - arrived_us)
            for answer in self.method.search(batch)
        ]
        return answers, batch.probes

    def _counts(self) -> tuple[int, ...]:
        method = self.method
        return method.bytes_read, method.prefetched_bytes, method.groups, process_read_bytes()


def _now_us() -> int:
    return time.perf_counter_ns() // 1_000
