"""The vectors of a build: saved shard by shard as they are embedded, or lent from a file of precomputed ones."""

from __future__ import annotations

import itertools
import struct
import zlib
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from carpool.disk.documents import DocumentStore
from carpool.disk.files import write_atomically
from carpool.embedding import Embedder
from carpool.errors import ConfigError
from indexer.corpus import passage_text
from indexer.plan import Shard

NORM_TOLERANCE = 1e-2
"""Float16 components move the norm of a normalised vector by far less; anything beyond was not normalised."""

_TRAILER = struct.Struct("<I")

Float32 = npt.NDArray[np.float32]


class Vectors:
    """Rows of (row_count, dimension) vectors in equal blocks, mapped from disk: only what is taken is in memory."""

    def __init__(
        self, blocks: Sequence[npt.NDArray[Any]], *, block_rows: int, are_normalised_again: bool = False
    ) -> None:
        """`are_normalised_again`: each row is brought back to length one, which rounding to float16 took from it."""
        self._are_normalised_again = are_normalised_again
        self._blocks = blocks
        self._block_rows = block_rows
        self.row_count = sum(len(block) for block in blocks)
        self.dimension = int(blocks[0].shape[1])

    def take(self, rows: npt.NDArray[np.int64]) -> Float32:
        """Returns (len(rows), dimension) float32, a copy. `rows` must be ascending. Blocks for the reads."""
        taken = np.empty((len(rows), self.dimension), dtype=np.float32)
        numbers = rows // self._block_rows
        bounds = np.flatnonzero(np.diff(numbers, prepend=-1, append=-1))
        for start, stop in itertools.pairwise(bounds):
            number = int(numbers[start])
            taken[start:stop] = self._blocks[number][rows[start:stop] - number * self._block_rows]
        if self._are_normalised_again:
            taken /= np.linalg.norm(taken, axis=1, keepdims=True)
        return taken

    def slice(self, start: int, stop: int) -> Float32:
        """Returns rows [start, stop) as float32, a copy."""
        return self.take(np.arange(start, min(stop, self.row_count), dtype=np.int64))


def shard_path(folder: Path, shard: Shard) -> Path:
    """Returns where a shard is saved."""
    return folder / f"shard-{shard.number:06d}.f32"


def present_shards(folder: Path, shards: Sequence[Shard], dimension: int) -> frozenset[int]:
    """Returns the numbers of the shards that are saved whole; a damaged one is not present. Reads them all, blocks."""
    return frozenset(shard.number for shard in shards if _is_whole(shard_path(folder, shard), shard, dimension))


def _is_whole(path: Path, shard: Shard, dimension: int) -> bool:
    if not path.is_file() or path.stat().st_size != (shard.stop - shard.start) * dimension * 4 + _TRAILER.size:
        return False
    content = path.read_bytes()
    return _TRAILER.pack(zlib.crc32(memoryview(content)[: -_TRAILER.size])) == content[-_TRAILER.size :]


def embed_shards(
    folder: Path, shards: Sequence[Shard], store: DocumentStore, embedder: Embedder, on_rows: Callable[[int], None]
) -> None:
    """Embeds and saves `shards`, each atomically; calls `on_rows` with the rows of each. Blocks for as long as it takes."""
    for shard in shards:
        texts = [passage_text(document) for document in store.get(range(shard.start, shard.stop))]
        vectors = embedder.encode(texts)
        check_vectors(vectors, shard.start, f"the model {embedder.fingerprint}")
        content = np.ascontiguousarray(vectors, dtype="<f4").tobytes()
        write_atomically(shard_path(folder, shard), content + _TRAILER.pack(zlib.crc32(content)))
        on_rows(len(texts))


def open_shards(folder: Path, shards: Sequence[Shard], dimension: int) -> Vectors:
    """Returns the saved vectors. All shards must be present."""
    blocks = [
        np.memmap(shard_path(folder, shard), dtype="<f4", mode="r", shape=(shard.stop - shard.start, dimension))
        for shard in shards
    ]
    return Vectors(blocks, block_rows=shards[0].stop - shards[0].start)


def open_precomputed(path: Path, row_count: int) -> Vectors:
    """Returns the vectors of an .npy file: (row_count, dim) float16 or float32, normalised. Raises `ConfigError` if not."""
    try:
        loaded = np.load(path, mmap_mode="r", allow_pickle=False)
    except (OSError, ValueError, EOFError) as error:
        raise ConfigError(
            f"cannot read the vectors {path} ({error}); give an .npy file of float16 or float32"
        ) from error
    if not isinstance(loaded, np.ndarray) or loaded.ndim != 2 or loaded.dtype not in (np.float16, np.float32):
        shape = f"{loaded.dtype} {loaded.shape}" if isinstance(loaded, np.ndarray) else type(loaded).__name__
        raise ConfigError(f"the vectors {path} are {shape}; expected float16 or float32 of shape (passages, dimension)")
    if len(loaded) != row_count or loaded.shape[1] == 0:
        raise ConfigError(
            f"the vectors {path} have shape {loaded.shape} for {row_count} accepted passages: they belong to another corpus, "
            "or were made from bad lines too; make one vector for each passage, in the order of the corpus"
        )
    vectors = Vectors([loaded], block_rows=row_count)
    for start in range(0, row_count, 4096):
        check_vectors(vectors.slice(start, start + 4096), start, str(path))
    return Vectors([loaded], block_rows=row_count, are_normalised_again=loaded.dtype == np.float16)


def check_vectors(vectors: Float32, first_row: int, source: str) -> None:
    """Raises `ConfigError` naming the first row whose vector is not of length one (or not finite)."""
    norms = np.linalg.norm(vectors, axis=1)
    bad = np.flatnonzero(~(np.abs(norms - 1) <= NORM_TOLERANCE))
    if len(bad):
        raise ConfigError(
            f"the vector of row {first_row + int(bad[0])} from {source} has length {norms[bad[0]]:.4g}, not 1; the index "
            "compares by inner product, so vectors must be normalised"
        )
