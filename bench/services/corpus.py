"""What claims and traffic share: the evaluation corpus, its index, settings, and the report."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any, Literal

from bench.core.machine import data_file
from bench.core.run import ServicesRun, begin_services
from bench.core.session import Session, open_session
from bench.data.evaluation import CORPUS, EvaluationData, find_data, read_vectors
from bench.data.index import BenchIndex, corpus_index
from bench.services.options import CorpusOptions
from carpool.embedding import EmbeddingSettings
from carpool.settings import environment_name
from producers.read_questions import Question
from producers.send_load import LoadPlan

Kind = Literal["text", "vectors"]


class CorpusRun(ServicesRun, frozen=True, kw_only=True):
    """A run on the corpus."""

    data: EvaluationData
    index: BenchIndex
    embedding: EmbeddingSettings

    @property
    def plan(self) -> LoadPlan:
        """How questions are sent."""
        return LoadPlan(embedding_model=self.index.manifest.embedding_model)

    def questions(self, name: str, kind: Kind = "text") -> tuple[Question, ...]:
        """Returns the questions `name` as text, or with precomputed vectors and without text."""
        questions = self.data.questions(name, self.options.limit)
        if kind == "text":
            return tuple(questions)
        vectors = read_vectors(self.data.vectors_path(name)).astype("<f4")
        return tuple(
            Question(id=question.id, vector=vector.tobytes())
            for question, vector in zip(questions, vectors, strict=False)
        )

    def session(
        self, services: Sequence[str], name: str = "", *, llm_url: str | None = None
    ) -> AbstractContextManager[Session]:
        """Returns a session with `services`; see `open_session`. `name`: of the folder of logs."""
        return open_session(
            bootstrap=self.options.bootstrap,
            index_dir=self.index.dir,
            work_dir=self.folder / name,
            services=services,
            settings=self.settings,
            llm_url=llm_url,
        )

    def facts(self, *files: Path) -> dict[str, Any]:
        """Returns what the report says of the data and the index. `files`: besides the corpus."""
        read = (self.data.corpus_path, self.data.vectors_path(CORPUS), *files)
        return {"data": tuple(data_file(path) for path in read), "index": self.index.facts}


def open_run(benchmark: str, options: CorpusOptions, may_be_other: bool = False) -> CorpusRun:
    """Returns the run; builds the index if absent, which blocks. Raises `CarpoolError`.

    `may_be_other`: the index may be of other passages than those of the data.
    """
    data = find_data(options.data)
    run = begin_services(benchmark, options, options.bootstrap or "embedded")
    embedding = EmbeddingSettings(model=options.model) if options.model else EmbeddingSettings()
    run.folder.mkdir(parents=True, exist_ok=True)
    index_dir = options.index or options.work / f"index-{options.nlist}-{options.seed}"
    index = corpus_index(
        data,
        index_dir=index_dir.resolve(),
        nlist=options.nlist,
        seed=options.seed,
        embedding=embedding,
        note=run.note,
        may_be_other=may_be_other,
    )
    run.settings.setdefault(environment_name("embedding", "model"), embedding.model)
    begun = {name: getattr(run, name) for name in run.__struct_fields__}
    return CorpusRun(**begun, data=data, index=index, embedding=embedding)
