"""What tests of benchmarks share: recorded records, vectors, and folders of evaluation data."""

from __future__ import annotations

import gzip
from pathlib import Path

import msgspec
import numpy as np
import numpy.typing as npt

from bench.core.topic_recorder import ReceivedRecord
from schemas.codec import encode
from schemas.record import Record


def unit_rows(rng: np.random.Generator, rows: int, dimension: int) -> npt.NDArray[np.float32]:
    """Returns random rows of length one."""
    vectors = rng.standard_normal((rows, dimension)).astype(np.float32)
    return vectors / np.linalg.norm(vectors, axis=1, keepdims=True)


def received(key: str, record: Record, received_us: int = 0) -> ReceivedRecord:
    """Returns a record that was read at this time."""
    value, headers = encode(record, event_id="e", source="test", time_us=0)
    return ReceivedRecord(key=key, value=value, headers=headers, received_us=received_us)


def write_embedded(
    folder: Path, name: str, rows: list[dict[str, str]], vectors: npt.NDArray[np.float32]
) -> None:
    """Writes texts and their vectors, (n, dim), as the evaluation data have them."""
    (folder / "embeddings").mkdir(exist_ok=True)
    (folder / f"{name}.jsonl.gz").write_bytes(
        gzip.compress(b"".join(msgspec.json.encode(row) + b"\n" for row in rows))
    )
    np.save(folder / "embeddings" / f"{name}.npy", vectors.astype(np.float16))
