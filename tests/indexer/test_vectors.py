"""Vectors are read from front to back, in chunks that do not depend on the files, and gathered in
one pass.
"""

import hashlib
import os
from pathlib import Path
from unittest.mock import patch

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from carpool.errors import ConfigError, CorruptionError
from indexer import vectors as module
from indexer.corpus import file_sha256
from indexer.plan.shards import plan_shards
from indexer.sequential import SequentialFile
from indexer.vectors import (
    RowFile,
    Vectors,
    open_precomputed,
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


def test_float16_vectors_are_normalised_again_unless_they_are_wanted_as_stored(
    tmp_path: Path,
) -> None:
    rows = normalised(50, 64).astype(np.float16)
    np.save(tmp_path / "v.npy", rows)
    vectors = open_precomputed(tmp_path / "v.npy", 50)
    (_, stored), *_ = [(first, chunk.copy()) for first, chunk in vectors.chunks(are_as_stored=True)]
    assert np.array_equal(stored, rows.astype(np.float32))
    ((_, chunk),) = vectors.chunks()
    assert np.abs(np.linalg.norm(chunk, axis=1) - 1).max() < 1e-6


def test_a_file_that_was_cut_during_the_build_is_an_error_that_names_its_end(
    tmp_path: Path,
) -> None:
    (tmp_path / "v").write_bytes(bytes(5 * 4 * 3 + 7))
    vectors = Vectors([RowFile(tmp_path / "v", 4, 4)], dimension=5)
    with pytest.raises(CorruptionError, match="ends at byte 67") as caught:
        list(vectors.chunks())
    assert caught.value.offset_bytes == 67


def test_vectors_stored_column_by_column_are_refused(tmp_path: Path) -> None:
    np.save(tmp_path / "v.npy", np.asfortranarray(normalised(10, 8)))
    with pytest.raises(ConfigError, match="row by row"):
        open_precomputed(tmp_path / "v.npy", 10)


def cached_pages(path: Path) -> int:
    """Pages of a file in the page cache."""
    import ctypes
    import mmap

    libc = ctypes.CDLL(None, use_errno=True)
    libc.mincore.argtypes = (ctypes.c_void_p, ctypes.c_size_t, ctypes.c_void_p)
    size_bytes = path.stat().st_size
    states = (ctypes.c_ubyte * -(-size_bytes // 4096))()
    with path.open("r+b") as file, mmap.mmap(file.fileno(), size_bytes) as mapped:
        address = ctypes.addressof(ctypes.c_char.from_buffer(mapped))
        assert libc.mincore(address, size_bytes, states) == 0
    return sum(state & 1 for state in states)


def test_a_pass_leaves_nothing_in_the_page_cache(tmp_path: Path) -> None:
    rows = normalised(20_000, 64)
    vectors = saved_shards(tmp_path, rows, 7000)
    paths = sorted(tmp_path.iterdir())
    for path in paths:
        with path.open("rb") as file:
            os.fsync(file.fileno())
            file.read()
    if not all(cached_pages(path) for path in paths):
        pytest.skip("this file system does not use the page cache")
    seen = [sum(map(cached_pages, paths)) for _ in vectors.chunks()]
    assert seen[-1] < sum(path.stat().st_size for path in paths) // 4096 // 2
    if tmp_path.stat().st_dev != Path("/dev/shm").stat().st_dev:
        assert sum(map(cached_pages, paths)) == 0


def test_a_file_is_read_whole_in_pieces_of_any_size(tmp_path: Path) -> None:
    content = np.random.default_rng(1).bytes(100_001)
    (tmp_path / "f").write_bytes(content)
    found, buffer = b"", memoryview(bytearray(7777))
    with SequentialFile(tmp_path / "f") as file:
        while count := file.read_into(buffer, len(found)):
            found += bytes(buffer[:count])
    assert found == content
    assert file_sha256(tmp_path / "f", "corpus") == hashlib.sha256(content).hexdigest()
    with pytest.raises(ConfigError, match="cannot read the corpus"):
        file_sha256(tmp_path / "none", "corpus")
