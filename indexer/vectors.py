"""The vectors of a build: saved in shards as they are embedded, or precomputed in one file."""

from __future__ import annotations

import io
import struct
import zlib
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
import numpy.typing as npt

from carpool.arrays import Float32
from carpool.disk.documents import DocumentStore
from carpool.disk.files import write_atomically
from carpool.embedding import Embedder
from carpool.embedding.embedder import batches
from carpool.errors import ConfigError, CorruptionError
from carpool.foreign_files import refuse_foreign
from indexer.corpus import passage_text

if TYPE_CHECKING:
    from typing_extensions import Buffer

NORM_TOLERANCE = 1e-2
"""Rounding to float16 changes the norm by far less; beyond it a vector was not normalised."""
CHUNK_ROWS = 8192
"""Rows in memory at once while vectors are read: 12 MB at dimension 384."""

_TRAILER = struct.Struct("<I")

OnRows = Callable[[int], None]


class RowFile(NamedTuple):
    """A file with `row_count` consecutive vectors from `offset_bytes`."""

    path: Path
    offset_bytes: int
    row_count: int


class Vectors:
    """(row_count, dimension) vectors in files, read from front to back one chunk at a time."""

    def __init__(
        self,
        files: Sequence[RowFile],
        *,
        dimension: int,
        dtype: str = "<f4",
        are_normalised_again: bool = False,
    ) -> None:
        """`dtype`: "<f4" or "<f2". `are_normalised_again`: rows rounded to float16 get length 1."""
        self._files = files
        self._dtype = np.dtype(dtype)
        self._are_normalised_again = are_normalised_again
        self.row_count = sum(file.row_count for file in files)
        self.dimension = dimension

    def chunks(self, *, are_as_stored: bool = False) -> Iterator[tuple[int, Float32]]:
        """Yields (first row, (n, dimension) float32) in order; n is `CHUNK_ROWS`, except the last.

        The array is overwritten by the next one. `are_as_stored`: not normalised again. Blocks for
        the reads. Raises `CorruptionError` where a file is too short.
        """
        is_normalised = self._are_normalised_again and not are_as_stored
        buffer = np.empty((min(CHUNK_ROWS, self.row_count), self.dimension), dtype=self._dtype)
        first = filled = 0
        for file in self._files:
            with file.path.open("rb") as source:
                source.seek(file.offset_bytes)
                done = 0
                while done < file.row_count:
                    count = min(file.row_count - done, len(buffer) - filled)
                    _fill(source, buffer[filled : filled + count])
                    done, filled = done + count, filled + count
                    if filled == len(buffer):
                        yield first, _as_float32(buffer, is_normalised)
                        first, filled = first + filled, 0
        if filled:
            yield first, _as_float32(buffer[:filled], is_normalised)

    def gather(
        self, rows: npt.NDArray[np.int64], taken: npt.NDArray[np.floating], on_rows: OnRows
    ) -> None:
        """Copies the distinct `rows` into `taken`: (len(rows), dimension) float32 or float16.

        One pass over the files; calls `on_rows` with the row count of each chunk. Blocks.
        """
        order = np.argsort(rows, kind="stable")
        ascending = rows[order]
        for first, chunk in self.chunks():
            start, stop = np.searchsorted(ascending, (first, first + len(chunk)))
            taken[order[start:stop]] = chunk[ascending[start:stop] - first]
            on_rows(len(chunk))


def _fill(source: io.BufferedReader, rows: npt.NDArray[np.floating]) -> None:
    """Reads the next rows of a file."""
    wanted = bytes_of(rows)
    if source.readinto(wanted) != len(wanted):
        end_bytes = source.tell()
        raise CorruptionError(
            f"{source.name} ends at byte {end_bytes}, in the middle of its vectors: it was changed "
            "during the build; restore it and run the same command again",
            path=str(source.name),
            offset_bytes=end_bytes,
        )


def bytes_of(array: npt.NDArray[np.generic]) -> memoryview:
    """Returns the memory of a contiguous array as bytes."""
    # NumPy's stubs do not say that an array is a buffer.
    content: Buffer = array.reshape(-1).view(np.uint8)  # type: ignore[assignment]
    return memoryview(content)


def _as_float32(rows: npt.NDArray[np.floating], is_normalised: bool) -> Float32:
    vectors: Float32 = rows.astype(np.float32, copy=False)
    if is_normalised:
        vectors /= np.linalg.norm(vectors, axis=1, keepdims=True)
    return vectors


def shard_path(folder: Path, shard: range) -> Path:
    """Returns where the vectors of these rows are saved."""
    return folder / f"shard-{shard.start:09d}.f32"


def is_saved(folder: Path, shard: range, dimension: int) -> bool:
    """Returns whether a shard is saved and undamaged. Reads it; blocks."""
    path = shard_path(folder, shard)
    content = path.read_bytes() if path.is_file() else b""
    rows, trailer = content[: -_TRAILER.size], content[-_TRAILER.size :]
    is_complete = len(rows) == len(shard) * dimension * 4
    return is_complete and trailer == _TRAILER.pack(zlib.crc32(rows))


def embed_shards(
    folder: Path, shards: Sequence[range], store: DocumentStore, embedder: Embedder, on_rows: OnRows
) -> None:
    """Embeds `shards` and saves each atomically; calls `on_rows` after each batch. Blocks."""
    for shard in shards:
        texts = [passage_text(document) for document in store.get(shard)]
        vectors = np.empty((len(texts), embedder.dimension), dtype="<f4")
        for rows in batches(texts):
            vectors[rows] = embedder.encode([texts[row] for row in rows])
            on_rows(len(rows))
        check_vectors(vectors, shard.start, f"the model {embedder.fingerprint}", store)
        content = vectors.tobytes()
        write_atomically(shard_path(folder, shard), content + _TRAILER.pack(zlib.crc32(content)))


def open_shards(folder: Path, shards: Sequence[range], dimension: int) -> Vectors:
    """Returns the saved vectors. All shards must be present."""
    files = [RowFile(shard_path(folder, shard), 0, len(shard)) for shard in shards]
    return Vectors(files, dimension=dimension)


def open_precomputed(path: Path, row_count: int | None = None) -> Vectors:
    """Returns the vectors of an .npy file: (row_count, dim) float16 or float32.

    `row_count` None: any number. Raises `ConfigError` for any other file. Reads its header only.
    """
    try:
        refuse_foreign(path)
        loaded = np.load(path, mmap_mode="r", allow_pickle=False)
    except (OSError, ValueError, EOFError) as error:
        raise ConfigError(
            f"cannot read the vectors {path} ({error}); give an .npy file of float16 or float32"
        ) from error
    if (
        not isinstance(loaded, np.memmap)
        or loaded.ndim != 2
        or loaded.dtype not in (np.float16, np.float32)
        or not loaded.flags.c_contiguous
    ):
        shape = (
            f"{loaded.dtype} {loaded.shape}"
            if isinstance(loaded, np.ndarray)
            else type(loaded).__name__
        )
        raise ConfigError(
            f"the vectors {path} are {shape}; expected float16 or float32 of shape (passages, "
            "dimension), row by row: numpy.save(path, numpy.ascontiguousarray(vectors, 'float32'))"
        )
    if len(loaded) != (row_count or len(loaded)) or 0 in loaded.shape:
        raise ConfigError(
            f"the vectors {path} have shape {loaded.shape} for {row_count or 'no'} accepted "
            "passages: they belong to another corpus, or were made from bad lines too; make one "
            "vector for each passage, in the order of the corpus"
        )
    return Vectors(
        [RowFile(path, int(loaded.offset), len(loaded))],
        dimension=int(loaded.shape[1]),
        dtype=loaded.dtype.str,
        are_normalised_again=loaded.dtype == np.float16,
    )


def check_stored(
    vectors: Vectors, source: str, on_rows: OnRows, passages: DocumentStore | None = None
) -> None:
    """Calls `check_vectors` for all. One pass; blocks."""
    for first, chunk in vectors.chunks(are_as_stored=True):
        check_vectors(chunk, first, source, passages)
        on_rows(len(chunk))


def check_vectors(
    vectors: Float32, first_row: int, source: str, passages: DocumentStore | None = None
) -> None:
    """Raises `ConfigError` naming the first row and passage not finite or not of length 1."""
    norms = np.sqrt(np.einsum("nd,nd->n", vectors, vectors))  # without a warning of an overflow
    bad = np.flatnonzero(~(np.abs(norms - 1) <= NORM_TOLERANCE))
    if len(bad):
        row = first_row + int(bad[0])
        which = f" (passage {passages.get([row])[0].doc_id!r})" if passages else ""
        raise ConfigError(
            f"the vector of row {row}{which} from {source} has length "
            f"{norms[bad[0]]:.4g}, not 1; the index compares by inner product, so vectors must be "
            "normalised: divide each by its length"
        )
