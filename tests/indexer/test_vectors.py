"""Vectors are read from front to back, in chunks that do not depend on the files, and gathered in
one pass.
"""

from pathlib import Path
from unittest.mock import patch

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from carpool.errors import CorruptionError
from indexer import vectors as module
from indexer.plan.state import plan_shards
from indexer.vectors import (
    RowFile,
    Vectors,
    open_shards,
    shard_path,
)


def normalised(row_count: int, dimension: int) -> np.ndarray:
    rows = (
        np.random.default_rng(row_count).standard_normal((row_count, dimension)).astype(np.float32)
    )
    rows /= np.linalg.norm(rows, axis=1, keepdims=True)
    return rows


def saved_shards(folder: Path, rows: np.ndarray, shard_rows: int) -> Vectors:
    shards = plan_shards(len(rows), shard_rows)
    for shard in shards:
        shard_path(folder, shard).write_bytes(rows[shard.start : shard.stop].tobytes() + b"crc!")
    return open_shards(folder, shards, rows.shape[1])


@given(row_count=st.integers(1, 200), shard_rows=st.integers(1, 70), chunk_rows=st.integers(1, 60))
def test_chunks_are_the_same_whatever_the_files(
    tmp_path_factory: pytest.TempPathFactory, row_count: int, shard_rows: int, chunk_rows: int
) -> None:
    rows = normalised(row_count, 5)
    vectors = saved_shards(tmp_path_factory.mktemp("v"), rows, shard_rows)
    with patch.object(module, "CHUNK_ROWS", chunk_rows):
        chunks = [(first, chunk.copy()) for first, chunk in vectors.chunks()]
    assert [first for first, _ in chunks] == list(range(0, row_count, chunk_rows))
    assert np.array_equal(np.concatenate([chunk for _, chunk in chunks]), rows)


@given(data=st.data(), dtype=st.sampled_from([np.float32, np.float16]))
def test_gathering_is_indexing(
    tmp_path_factory: pytest.TempPathFactory, data: st.DataObject, dtype: type
) -> None:
    rows = normalised(100, 5)
    vectors = saved_shards(tmp_path_factory.mktemp("v"), rows, 17)
    wanted = np.array(data.draw(st.lists(st.integers(0, 99), unique=True)), dtype=np.int64)
    taken: np.ndarray = np.empty((len(wanted), 5), dtype=dtype)
    went_by: list[int] = []
    with patch.object(module, "CHUNK_ROWS", data.draw(st.integers(1, 110))):
        vectors.gather(wanted, taken, went_by.append)
    assert np.array_equal(taken, rows[wanted].astype(dtype))
    assert sum(went_by) == 100


def test_a_file_that_was_cut_during_the_build_is_an_error_that_names_its_end(
    tmp_path: Path,
) -> None:
    (tmp_path / "v").write_bytes(bytes(5 * 4 * 3 + 7))
    vectors = Vectors([RowFile(tmp_path / "v", 4, 4)], dimension=5)
    with pytest.raises(CorruptionError, match="ends at byte 67") as caught:
        list(vectors.chunks())
    assert caught.value.offset_bytes == 67
