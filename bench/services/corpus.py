"""What claims and traffic share: the evaluation corpus, its index, settings, and the report."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any, Literal

import msgspec
from rich.console import Console

from bench.core.machine import data_file
from bench.core.report import Report, RunStart
from bench.core.stack import parse_settings
from bench.data.evaluation import CORPUS, EvaluationData, find_data
from bench.data.index import BenchIndex, corpus_index
from carpool.embedding import EmbeddingSettings
from carpool.settings import environment_name
from producers.read_questions import NpyRows, Question, with_vectors
from producers.send_load import LoadPlan

Kind = Literal["text", "vectors"]


class CorpusOptions(msgspec.Struct, frozen=True, kw_only=True):
    """Options of claims and traffic.

    `model` None: the services' default. `settings`: SECTION.NAME=VALUE each.
    """

    data: Path | None
    bootstrap: str | None
    index: Path | None
    work: Path
    nlist: int
    model: str | None
    settings: tuple[str, ...]
    seed: int
    limit: int | None
    json_file: Path | None


class CorpusRun(msgspec.Struct, frozen=True, kw_only=True):
    """A run on the corpus. `settings`: environment variables of the services."""

    options: CorpusOptions
    start: RunStart
    data: EvaluationData
    index: BenchIndex
    embedding: EmbeddingSettings
    work_dir: Path
    settings: dict[str, str]

    @property
    def plan(self) -> LoadPlan:
        """How questions are sent."""
        return LoadPlan(embedding_model=self.index.manifest.embedding_model)

    def questions(self, name: str, kind: Kind = "text") -> tuple[Question, ...]:
        """Returns the questions `name` as text, or with precomputed vectors and without text."""
        questions = self.data.questions(name, self.options.limit)
        if kind == "text":
            return tuple(questions)
        return with_vectors(questions, NpyRows(self.data.vectors_path(name)), keep_text=False)

    def report(
        self,
        benchmark: str,
        *,
        options: msgspec.Struct,
        files: Sequence[Path],
        promises: dict[str, bool],
        results: Any,
    ) -> Report:
        """Returns the report. `options`: of this benchmark; `files`: data besides the corpus."""
        read = (self.data.corpus_path, self.data.vectors_path(CORPUS), *files)
        common = {"limit": self.options.limit, "seed": self.options.seed, "services": self.settings}
        return self.start.report(
            benchmark,
            settings=msgspec.to_builtins(options) | common,
            promises=promises,
            results=results,
            data=tuple(data_file(path) for path in read),
            index=self.index.facts,
            broker=self.options.bootstrap or "embedded",
        )


def open_run(options: CorpusOptions, benchmark: str) -> CorpusRun:
    """Returns the run; builds the index if absent, which blocks. Raises `CarpoolError`."""
    start = RunStart.now()
    console = Console(stderr=True, highlight=False)
    data = find_data(options.data)
    embedding = EmbeddingSettings(model=options.model) if options.model else EmbeddingSettings()
    work_dir = (options.work / benchmark).resolve()
    work_dir.mkdir(parents=True, exist_ok=True)
    index_dir = options.index or options.work / f"index-{options.nlist}-{options.seed}"
    index = corpus_index(
        data,
        index_dir=index_dir.resolve(),
        nlist=options.nlist,
        seed=options.seed,
        embedding=embedding,
        note=console.print,
    )
    console.print(f"logs of the services: {work_dir}")
    model = {environment_name("embedding", "model"): embedding.model}
    return CorpusRun(
        options=options,
        start=start,
        data=data,
        index=index,
        embedding=embedding,
        work_dir=work_dir,
        settings=model | parse_settings(options.settings),
    )
