"""What claims and answers share: the evaluation corpus, its index, and the report."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any

from bench.core.machine import data_file
from bench.core.run import ServicesRun
from bench.core.session import Session, open_session
from bench.data.evaluation import CORPUS, find_data
from bench.data.index import BenchIndex, corpus_index
from bench.services.options import CorpusOptions
from carpool.embedding import EmbeddingSettings
from carpool.settings import environment_name


class CorpusRun(ServicesRun):
    """A run on the corpus."""

    def __init__(self, benchmark: str, options: CorpusOptions) -> None:
        """Builds the index if absent, which blocks. Raises `CarpoolError`."""
        self.data = find_data(options.data)
        super().__init__(benchmark, options, "embedded")
        self.folder.mkdir(parents=True, exist_ok=True)
        embedding = EmbeddingSettings(model=options.model) if options.model else EmbeddingSettings()
        self.index = self.open_index(options, embedding)
        self.note(f"index: {self.index.dir}")
        self.settings.setdefault(environment_name("embedding", "model"), embedding.model)

    def open_index(self, options: CorpusOptions, embedding: EmbeddingSettings) -> BenchIndex:
        """Returns the index of the run, built if absent. Blocks."""
        return corpus_index(
            self.data,
            folder=options.work.resolve(),
            nlist=options.nlist,
            seed=options.seed,
            embedding=embedding,
        )

    def session(
        self, services: Sequence[str], name: str = "", **stack: Any
    ) -> AbstractContextManager[Session]:
        """Returns a session with `services`; see `open_session`. `name`: of the folder of logs."""
        folder = self.folder / name
        return open_session(self.index.dir, folder, self.settings, services=services, **stack)

    def facts(self, *files: Path) -> dict[str, Any]:
        """Returns what the report says of index and corpus, and of the further `files` of data."""
        read = (self.data.corpus_path, self.data.vectors_path(CORPUS), *files)
        return {"data": [data_file(path) for path in read], "index": self.index.facts}
