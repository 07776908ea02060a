"""The model in ONNX Runtime and in torch: times, memory, and whether they find the same."""

from __future__ import annotations

import resource
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context
from pathlib import Path
from statistics import median
from typing import Any

import msgspec
import numpy as np
import psutil
from rich.console import Console
from rich.table import Table

from bench.core.machine import data_file
from bench.core.report import RunStart, finish
from bench.data.evaluation import Float32, find_data
from carpool.embedding import Embedder, EmbeddingSettings, load_embedder
from carpool.embedding.files import find_model
from carpool.embedding.torch_embedder import TorchEmbedder, load_model
from producers.read_questions import read_questions

RUNTIMES = ("onnx", "torch")
QUESTIONS = "queries-nq"
COSINE_MIN = 0.99999
SAME_BEST = 10

_loaded: dict[str, Embedder] = {}
"""The model of this process."""


class EmbeddingOptions(msgspec.Struct, frozen=True, kw_only=True):
    """What is measured. `rounds`: the runtimes take turns so many times."""

    model: str
    questions: int
    passages: int
    rounds: int


class RuntimeRow(msgspec.Struct, frozen=True, kw_only=True):
    """Medians of rounds. CPU times in ms of one text; `lone`: asked alone; `mib`: resident."""

    runtime: str
    lone_cpu_ms: float
    lone_ms: float
    window_cpu_ms: float
    passage_cpu_ms: float
    mib_after_questions: float
    mib_after_passages: float


class EmbeddingResult(msgspec.Struct, frozen=True, kw_only=True):
    """`same_best`: questions whose ten best passages are the same, in order."""

    rows: tuple[RuntimeRow, ...]
    cosine_min: float
    same_best: int


def run(data_dir: Path | None, options: EmbeddingOptions, json_file: Path | None) -> bool:
    """Measures, prints and reports; returns whether both runtimes gave the same vectors."""
    start = RunStart.now()
    data = find_data(data_dir)
    asked, texts = (
        [each.text or "" for each in read_questions(path, count)]
        for path, count in (
            (data.questions_path(QUESTIONS), options.questions),
            (data.corpus_path, options.passages),
        )
    )
    results = measure(asked, texts, options)
    promise = f"equal vectors (cosine {COSINE_MIN}) and the same {SAME_BEST} best passages"
    report = start.report(
        "embedding",
        settings=options,
        promises={
            promise: results.cosine_min >= COSINE_MIN and results.same_best == options.questions
        },
        results=results,
        data=(data_file(data.corpus_path), data_file(data.questions_path(QUESTIONS))),
    )
    return finish(report, json_file, lambda console: print_result(console, options, results))


def measure(
    questions: Sequence[str], passages: Sequence[str], options: EmbeddingOptions
) -> EmbeddingResult:
    """Returns the figures; the runtimes take turns, each in a process of its own."""
    runs = [_Runtime(name, options.model) for name in RUNTIMES]
    try:
        for _ in range(options.rounds):
            for run in runs:
                run.lone.append(run.call(_each, questions))
                run.asked, cpu_ms = run.call(_all, questions)
                run.window.append(cpu_ms)
        for run in runs:
            run.mib.append(run.call(_resident_mib))
        step = max(1, len(passages) // options.rounds)
        for start in range(0, len(passages), step):
            for run in runs:
                rows, cpu_ms = run.call(_all, passages[start : start + step])
                run.found.append(rows)
                run.whole.append(cpu_ms)
        for run in runs:
            run.mib.append(run.call(_resident_mib))
    finally:
        for run in runs:
            run.pool.shutdown()
    found = [np.concatenate(run.found) for run in runs]
    best = [
        np.argsort(-run.asked @ rows.T, axis=1)[:, :SAME_BEST]
        for run, rows in zip(runs, found, strict=True)
    ]
    both = [np.concatenate((run.asked, rows)) for run, rows in zip(runs, found, strict=True)]
    return EmbeddingResult(
        rows=tuple(run.row() for run in runs),
        cosine_min=float((both[0] * both[1]).sum(axis=1).min()),
        same_best=int((best[0] == best[1]).all(axis=1).sum()),
    )


class _Runtime:
    """A process with one model, and what was measured in it."""

    def __init__(self, name: str, model: str) -> None:
        self.name = name
        self.pool = ProcessPoolExecutor(1, get_context("spawn"), _open, (name, model))
        self.lone: list[tuple[float, float]] = []
        self.window: list[float] = []
        self.whole: list[float] = []
        self.mib: list[float] = []
        self.asked: Float32 = np.zeros((0, 0), dtype=np.float32)
        self.found: list[Float32] = []

    def call(self, work: Callable[..., Any], *values: Any) -> Any:
        return self.pool.submit(work, *values).result()

    def row(self) -> RuntimeRow:
        return RuntimeRow(
            runtime=self.name,
            lone_cpu_ms=median(cpu for cpu, _ in self.lone),
            lone_ms=median(wall for _, wall in self.lone),
            window_cpu_ms=median(self.window),
            passage_cpu_ms=median(self.whole),
            mib_after_questions=self.mib[0],
            mib_after_passages=self.mib[1],
        )


def print_result(console: Console, options: EmbeddingOptions, result: EmbeddingResult) -> None:
    """Prints one row a runtime, and how far they agree."""
    table = Table(box=None, header_style="bold")
    for name in RuntimeRow.__struct_fields__:
        table.add_column(name, justify="left" if name == "runtime" else "right")
    for row in result.rows:
        name, *figures = msgspec.structs.astuple(row)
        table.add_row(name, *(f"{each:.1f}" for each in figures))
    console.print(table)
    console.print(
        f"lowest cosine {result.cosine_min:.7f}; the same {SAME_BEST} best of {options.passages} "
        f"passages for {result.same_best} of {options.questions} questions"
    )


def _open(runtime: str, model: str) -> None:
    settings = EmbeddingSettings(model=model)
    if runtime == "onnx":
        _loaded["model"] = load_embedder(settings)
    else:
        loaded = load_model(find_model(settings), settings)
        _loaded["model"] = TorchEmbedder(loaded, fingerprint="", batch_size=settings.batch_size)
    _loaded["model"].encode(["warm"])


def _timed(texts: Sequence[str]) -> tuple[Float32, float, float]:
    """The vectors, and ms on the CPU and on the clock."""
    before, began = resource.getrusage(resource.RUSAGE_SELF), time.perf_counter()
    rows = _loaded["model"].encode(texts)
    took, after = time.perf_counter() - began, resource.getrusage(resource.RUSAGE_SELF)
    cpu = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
    return rows, cpu * 1_000, took * 1_000


def _each(texts: Sequence[str]) -> tuple[float, float]:
    """CPU ms of a text on average, and the median of the times: one text after the other."""
    timed = [_timed([text])[1:] for text in texts]
    return sum(cpu for cpu, _ in timed) / len(texts), median(wall for _, wall in timed)


def _all(texts: Sequence[str]) -> tuple[Float32, float]:
    """The vectors, and the CPU ms of a text: all in one call."""
    rows, cpu_ms, _ = _timed(texts)
    return rows, cpu_ms / len(texts)


def _resident_mib() -> float:
    return float(psutil.Process().memory_info().rss) / (1 << 20)
