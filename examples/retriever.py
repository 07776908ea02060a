"""A retriever for LangChain and for whatever has the same interface, over a folder with an index.

It needs no package except Carpool: LangChain calls `invoke`, `batch` and `ainvoke`, and reads
`page_content` and `metadata` of what it gets. In a chain: `RunnableLambda(retriever.invoke)`.

    python examples/retriever.py .carpool/index "How high is the Eiffel Tower?"
"""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from carpool import LocalSearcher


@dataclass(frozen=True)
class Passage:
    """A passage as LangChain's `Document` has it."""

    page_content: str
    metadata: dict[str, Any] = field(default_factory=dict)


class Retriever:
    """Finds `top_k` passages for each question. `search_mode`: None is the default."""

    def __init__(self, index_dir: str | Path, *, top_k: int = 5, search_mode: Any = None) -> None:
        self._searcher = LocalSearcher(index_dir)
        self._top_k = top_k
        self._mode = search_mode

    def invoke(self, question: str, config: Any = None, **options: Any) -> list[Passage]:
        """Returns the passages of one question, best first."""
        return self.batch([question])[0]

    def batch(
        self, questions: Sequence[str], config: Any = None, **options: Any
    ) -> list[list[Passage]]:
        """Returns the passages of each question. Questions that come together are faster."""
        results = self._searcher.search(list(questions), top_k=self._top_k, mode=self._mode)
        return [
            [
                Passage(
                    hit.text,
                    (hit.metadata or {})
                    | {"id": hit.doc_id, "title": hit.title, "score": hit.score},
                )
                for hit in result.hits
            ]
            for result in results
        ]

    async def ainvoke(self, question: str, config: Any = None, **options: Any) -> list[Passage]:
        """As `invoke`, on a thread, so that other work goes on."""
        return await asyncio.to_thread(self.invoke, question)

    def close(self) -> None:
        """Closes the index."""
        self._searcher.close()


def main() -> None:
    """Prints the passages of a question."""
    retriever = Retriever(sys.argv[1])
    for passage in retriever.invoke(" ".join(sys.argv[2:])):
        title, score = passage.metadata["title"], passage.metadata["score"]
        sys.stdout.write(f"{score:.3f}  {title}: {passage.page_content[:70]}\n")
    retriever.close()


if __name__ == "__main__":
    main()
