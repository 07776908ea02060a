"""What tests of benchmarks share: records as a listener saw them, small folders of evaluation
data.
"""

from __future__ import annotations

import gzip
from pathlib import Path

import msgspec
import numpy as np
import numpy.typing as npt

from bench.core.topic_recorder import Arrived
from schemas.codec import encode
from schemas.record import Record


def arrived(key: str, record: Record, arrived_us: int = 0) -> Arrived:
    """Returns a record that was read at this moment."""
    value, headers = encode(record, event_id="e", source="test", time_us=0)
    return Arrived(key=key, value=value, headers=headers, arrived_us=arrived_us)


def write_embedded(
    folder: Path, name: str, rows: list[dict[str, str]], vectors: npt.NDArray[np.float32]
) -> None:
    """Writes texts and their vectors, (n, dim), as the evaluation data have them."""
    (folder / "embeddings").mkdir(exist_ok=True)
    (folder / f"{name}.jsonl.gz").write_bytes(
        gzip.compress(b"".join(msgspec.json.encode(row) + b"\n" for row in rows))
    )
    np.save(folder / "embeddings" / f"{name}.npy", vectors.astype(np.float16))
