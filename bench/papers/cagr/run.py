"""One run: other questions to warm up, then batch after batch, each query timed on both clocks."""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator, Sequence
from itertools import cycle, islice

import msgspec
import numpy as np

from bench.core.progress import Tell
from bench.core.spread import Spread, spread
from bench.data.evaluation import EvaluationData
from bench.data.oracles import static_oracle_bytes
from bench.papers.cagr.method import Answer, Batch, Method
from bench.papers.cagr.overlap import Int32
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

    queries: int
    query_ms: Spread | None
    batch_ms: Spread
    encode_ms: float
    hits: float
    hits_least: float
    bytes_a_query: float
    prefetched: float
    oracle_bytes_a_query: float
    groups: float
    queries_per_s: float
    bytes_agree: bool


class RunQuestions(msgspec.Struct, frozen=True):
    """Distinct texts. `measured`: asked once, in order; `warm_up`: the others."""

    measured: tuple[str, ...]
    warm_up: tuple[str, ...]


def load_questions(data: EvaluationData, dataset: str, queries: int) -> RunQuestions:
    """Returns the first `queries` distinct texts to measure, the rest to warm up with.

    The rest is at least a quarter. Raises `ConfigError` for a file that is missing or too small.
    """
    name = FILES[dataset]
    texts = tuple(dict.fromkeys(each.text for each in data.questions(name) if each.text))
    count = min(queries, int(len(texts) * (1 - WARM_UP_SHARE_MIN)))
    if count < 3:
        raise ConfigError(
            f"{name} has {len(texts)} questions, too few to measure with; name another folder with "
            "--data"
        )
    return RunQuestions(texts[:count], texts[count:])


def batches(texts: Iterable[str], rng: np.random.Generator) -> Iterator[tuple[str, ...]]:
    """Yields `texts` in batches of a random size, both bounds included (section 4.1, Traffic)."""
    rest = iter(texts)
    while batch := tuple(islice(rest, int(rng.integers(BATCH_MIN, BATCH_MAX + 1)))):
        yield batch


class Asker:
    """Asks batches of texts of one method, and keeps a row of times and counts for each query."""

    def __init__(self, method: Method, index: OpenIndex, embedder: Embedder, nprobe: int) -> None:
        self._method, self._index, self._embedder, self._nprobe = method, index, embedder, nprobe
        self.answers: list[tuple[Answer, int, int]] = []
        """With the time of encoding the query, and the time since its batch arrived."""
        self.probes: list[Int32] = []

    def ask(self, texts: Sequence[str]) -> None:
        """Embeds and probes one by one (section 2.2, steps 1 and 2), then searches. Blocks."""
        arrived_us = _now_us()
        vectors, probes, encode_us = [], [], []
        for text in texts:
            began_us = _now_us()
            vectors.append(self._embedder.encode([text])[0])
            probes.append(probe(self._index.centroids, vectors[-1][None], self._nprobe)[0])
            encode_us.append(_now_us() - began_us)
        batch = Batch(np.stack(vectors), np.stack(probes), TOP_K)
        self.probes.append(batch.probes)
        for answer in self._method.search(batch):
            self.answers.append((answer, encode_us[answer.query], _now_us() - arrived_us))


def measure(
    method: Method,
    index: OpenIndex,
    embedder: Embedder,
    questions: RunQuestions,
    *,
    nprobe: int,
    entries: int,
    warm_up_s: float,
    seed: int,
    tell: Tell,
) -> RunFigures:
    """Warms up, measures, and returns what was measured. Blocks. The caller closes `method`.

    Clusters are read past the page cache, so only the cache under test warms up.
    """
    warm_up = Asker(method, index, embedder, nprobe)
    until_us = _now_us() + warm_up_s * 1e6
    for texts in batches(cycle(questions.warm_up), np.random.default_rng([seed, 1])):
        if _now_us() >= until_us:
            break
        warm_up.ask(texts)
    asker = Asker(method, index, embedder, nprobe)
    before = (method.bytes_read, method.prefetched_bytes, method.groups, process_read_bytes())
    began_us = _now_us()
    for texts in batches(questions.measured, np.random.default_rng(seed)):
        asker.ask(texts)
        tell("measuring", len(asker.answers), len(questions.measured))
    took_us = _now_us() - began_us
    after = (method.bytes_read, method.prefetched_bytes, method.groups, process_read_bytes())
    read, ahead, groups, kernel = (now - then for now, then in zip(after, before, strict=True))
    count = len(asker.answers)
    hits = [answer.hits / nprobe for answer, _, _ in asker.answers]
    sizes = np.array([extent.size_bytes for extent in index.extents], np.int64)
    oracle_bytes = static_oracle_bytes(asker.probes, sizes, int(sizes.mean() * entries))
    batch_ms = spread(batch_us / 1e3 for _, _, batch_us in asker.answers)
    assert batch_ms is not None
    return RunFigures(
        queries=count,
        query_ms=spread(
            (encode_us + answer.own_us) / 1e3
            for answer, encode_us, _ in asker.answers
            if answer.own_us is not None
        ),
        batch_ms=batch_ms,
        encode_ms=float(np.mean([encode_us for _, encode_us, _ in asker.answers])) / 1e3,
        hits=float(np.mean(hits)),
        hits_least=min(hits),
        bytes_a_query=read / count,
        prefetched=ahead / max(1, read),
        oracle_bytes_a_query=oracle_bytes / count,
        groups=groups / len(asker.probes),
        queries_per_s=count / took_us * 1e6,
        bytes_agree=agrees(kernel, read),
    )


def _now_us() -> int:
    return time.perf_counter_ns() // 1_000
