"""A service that is killed at a step of the corpus: the one that the file MORTAL_FILE names."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable
from contextlib import suppress
from functools import wraps
from pathlib import Path
from typing import Any

import indexer.save
from carpool.disk.documents import DocumentWriter
from carpool.disk.segments import SegmentWriter
from carpool.kafka.librdkafka import LibrdkafkaTransactionalProducer
from cli.main import main
from indexer.saver import BaseSaver
from searcher.base_swaps import BaseSwaps
from searcher.service import SearcherStage

STEPS: dict[str, tuple[Any, str, bool]] = {
    "a document is in the transaction": (LibrdkafkaTransactionalProducer, "produce", True),
    "its position is in the transaction": (LibrdkafkaTransactionalProducer, "send_offsets", True),
    "the commit is sent": (LibrdkafkaTransactionalProducer, "commit", False),
    "the commit is done": (LibrdkafkaTransactionalProducer, "commit", True),
    "the documents of a base are written": (DocumentWriter, "close", True),
    "its clusters are written": (SegmentWriter, "close", True),
    "its manifest is written": (indexer.save, "write_manifest", False),
    "it is announced": (BaseSaver, "_announce", False),
    "it was announced": (BaseSaver, "_announce", True),
    "a searcher opens it": (BaseSwaps, "_swap", False),
    "a searcher has opened it": (SearcherStage, "_open", True),
    "the old one is closed": (BaseSwaps, "_close", False),
}
"""Of each what is called, and whether the call is made before the kill."""


def of_service(step: str) -> str:
    """Returns the service that takes a step."""
    return (
        "indexer"
        if list(STEPS).index(step) < list(STEPS).index("a searcher opens it")
        else ("searcher")
    )


def _mortal(step: str, real: Callable[..., Any], *, is_made: bool) -> Callable[..., Any]:
    @wraps(real)
    def call(*args: Any, **named: Any) -> Any:
        result = real(*args, **named) if is_made else None
        file = Path(os.environ["MORTAL_FILE"])
        with suppress(FileNotFoundError):
            if file.read_text() == step:
                file.unlink()
                os.kill(os.getpid(), signal.SIGKILL)
        return result if is_made else real(*args, **named)

    return call


if __name__ == "__main__":
    for each, (owner, name, is_made) in STEPS.items():
        setattr(owner, name, _mortal(each, getattr(owner, name), is_made=is_made))
    main()
