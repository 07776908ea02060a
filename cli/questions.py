"""The options that name real questions: those of a file, or those that Kafka still has."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from carpool.clock import SystemClock
from cli.console import step_progress
from cli.options import Beside

# NumPy is imported by the commands that need it: the base install has none.
if TYPE_CHECKING:
    from carpool.disk.manifest import Manifest
    from carpool.embedding import EmbeddingSettings

QuestionsOption = Annotated[
    Path | None,
    typer.Option(
        metavar="FILE",
        help="Questions: vectors (.npy), or one a line, as text or as JSON with `text`. Default: "
        "those that Kafka still has.",
    ),
]
LastOption = Annotated[
    int, typer.Option(min=100, metavar="N", help="Take the last N questions at most.")
]


@dataclass(frozen=True, kw_only=True)
class Asked:
    """Real questions."""

    questions: QuestionsOption = None
    last: LastOption = 5000

    def vectors(self, manifest: Manifest, embedding: EmbeddingSettings, beside: Beside) -> Any:
        """Returns them: (n, dim) float32, normalised. Blocks to read and embed them."""
        from indexer.questions import questions_of_file, questions_of_log

        if self.questions is not None:
            return questions_of_file(self.questions, manifest, embedding, self.last)
        kafka, clock = beside.settings().kafka, SystemClock()
        return questions_of_log(kafka, manifest, embedding, self.last, clock, step_progress())
