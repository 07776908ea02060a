"""What the benchmarks of the Kafka core share: made-up passages in a small index, questions about
them, and the report.
"""

from __future__ import annotations

import random
import re
import shutil
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from bench.core.machine import Machine, program, this_revision
from bench.core.report import IndexFacts, Report
from bench.data.index import BenchIndex, index_of_texts
from carpool.embedding import HashingEmbedder
from carpool.errors import ConfigError
from carpool.testing.kafka import kafka_home, kafka_version
from producers.read_questions import Question

DIMENSION = 384
MODEL = f"hashing:{DIMENSION}"
"""Hashed words for an embedder: what is measured is what lies around a model and a search."""

PASSAGES = 400
NLIST = 16
QUESTIONS = 500
"""Different questions; a longer load asks them again, each time under an id of its own."""
WORDS = (
    "river",
    "mountain",
    "painter",
    "treaty",
    "orbit",
    "enzyme",
    "harbour",
    "violin",
    "glacier",
    "senate",
    "lantern",
    "copper",
    "meadow",
    "comet",
    "dialect",
    "castle",
    "desert",
    "engine",
    "orchard",
    "market",
    "temple",
    "canal",
)

ENVIRONMENT = {"CARPOOL_EMBEDDING_MODEL": MODEL, "CARPOOL_LLM_ENGINE": "none"}
"""Settings of the services: no model for vectors and none for answers."""

LABEL = re.compile(r'(\w+)="([^"]*)"')


def made_up_index(folder: Path) -> BenchIndex:
    """Returns an index of `PASSAGES` made-up passages in `folder`, built unless it is there. Blocks
    for a second.
    """
    rng = random.Random(7)
    texts = [_words(rng, 30) for _ in range(PASSAGES)]
    return index_of_texts(texts, index_dir=folder / "made-up-index", nlist=NLIST, model=MODEL)


def made_up_questions(count: int) -> tuple[Question, ...]:
    """Returns `count` questions with text and the vector of it, of which `QUESTIONS` are
    different.
    """
    rng = random.Random(11)
    texts = ["what of the " + _words(rng, 4) for _ in range(min(count, QUESTIONS))]
    rows = HashingEmbedder(DIMENSION).encode(texts)
    different = [
        Question(text=text, vector=row.astype("<f4").tobytes())
        for text, row in zip(texts, rows, strict=True)
    ]
    return tuple(different[number % len(different)] for number in range(count))


def by_label(samples: Mapping[str, float], metric: str, label: str) -> dict[str, float]:
    """Returns what a metric counted, added up by one of its labels."""
    found: dict[str, float] = {}
    for name, value in samples.items():
        if name.partition("{")[0] == metric:
            key = dict(LABEL.findall(name)).get(label, "")
            found[key] = found.get(key, 0.0) + value
    return found


@contextmanager
def fresh_folder(folder: Path) -> Iterator[Path]:
    """Yields an empty folder for the data of brokers, and removes it with all that is in it
    after.
    """
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    try:
        yield folder
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def require_kafka() -> None:
    """Raises `ConfigError` where no broker can be started."""
    if kafka_home() is None:
        raise ConfigError(
            "this benchmark starts brokers: set KAFKA_HOME to a Kafka distribution, and install "
            "Java 17"
        )


def kafka_report(
    benchmark: str,
    *,
    started_s: float,
    machine: Machine,
    index: BenchIndex | None,
    settings: dict[str, Any],
    promises: dict[str, bool],
    results: Any,
) -> Report:
    """Returns the report of a run on brokers that were started for it. `index`: None where none was
    searched.
    """
    return Report(
        benchmark=benchmark,
        command=program(),
        started=datetime.fromtimestamp(started_s, UTC).isoformat(timespec="seconds"),
        duration_s=time.time() - started_s,
        machine=machine,
        revision=this_revision(),
        broker=f"Apache Kafka {kafka_version()}, started for the run",
        data=(),
        index=None if index is None else _index_facts(index),
        settings=settings,
        promises=promises,
        results=results,
    )


def _index_facts(index: BenchIndex) -> IndexFacts:
    manifest = index.manifest
    return IndexFacts(
        index_version=manifest.index_version,
        row_count=manifest.row_count,
        dimension=manifest.dimension,
        nlist=manifest.nlist,
        nprobe_default=manifest.nprobe_default,
        segment_bytes=index.segment_bytes,
        embedding_model=manifest.embedding_model,
    )


def _words(rng: random.Random, count: int) -> str:
    return " ".join(rng.choice(WORDS) for _ in range(count))
