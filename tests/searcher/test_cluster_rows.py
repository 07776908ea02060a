"""Whole clusters are read for the hot shard as they are stored."""

from pathlib import Path

import numpy as np
import pytest

from carpool.disk.direct import NoDirectReadError
from carpool.disk.index import open_index
from carpool.disk.pages import VectorDtype
from carpool.errors import CorruptionError
from schemas.record import ClusterId
from searcher.shard.cluster_rows import ClusterRowsReader
from searcher.store import files
from searcher.store.files import SegmentFiles
from tests.searcher.codes_rig import directions
from tests.searcher.helpers import SmallIndex, write_index

# Pages of rows of 256 numbers have no other bytes, pages of 48 have some.


def reader_of(index: SmallIndex) -> ClusterRowsReader:
    opened = open_index(index.dir)
    opened.close()
    return ClusterRowsReader(opened, SegmentFiles(index.paths, "auto"))


@pytest.mark.parametrize(("dtype", "dimension"), [("float32", 256), ("float16", 48)])
def test_vectors_come_as_they_are_stored(
    dtype: VectorDtype, dimension: int, tmp_path: Path
) -> None:
    vectors, centroids = directions(300, dimension, seed=1), directions(5, dimension, seed=2)
    centroids[4] = -vectors.mean(0)  # of an empty cluster
    index = write_index(tmp_path, vectors, centroids, vector_dtype=dtype)
    reader = reader_of(index)
    for cluster in (0, 3, 1, 2, 4, 0):
        found = reader.read(ClusterId(cluster))
        assert found.dtype == dtype
        assert np.array_equal(found, vectors[index.assigned == cluster].astype(dtype))
    reader.close()


def test_a_cluster_whose_file_became_shorter_after_it_was_read_is_damaged(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(path: str) -> int:
        raise NoDirectReadError("does not take O_DIRECT")

    # Some file systems fill a buffer with zeros behind the end of a file, if it is read directly.
    monkeypatch.setattr(files, "open_direct", refuse)
    index = write_index(tmp_path, directions(300, 48, seed=1), directions(2, 48, seed=2))
    reader = reader_of(index)
    last = ClusterId(1)
    assert len(reader.read(last))
    path = index.paths[index.extents[last].segment]
    with path.open("r+b") as file:
        file.truncate(index.extents[last].offset_bytes + 4096)
    with pytest.raises(CorruptionError, match=path.name):
        reader.read(last)
    reader.close()
