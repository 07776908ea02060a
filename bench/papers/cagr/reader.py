"""Reads whole clusters past the page cache, verified, several at a time."""

from __future__ import annotations

import mmap
import os
import statistics
import time
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import ExitStack, suppress

import numpy as np

from carpool.disk.direct import NoDirectReadError, open_direct
from carpool.disk.index import OpenIndex
from carpool.disk.pages import ClusterPages
from carpool.disk.segments import verify_pages
from carpool.errors import ConfigError, CorruptionError

READS_MAX = 16
"""Clusters that are read at a time."""
ROUNDS = 3


class ClusterReader:
    """Reads of an index. The caller closes it."""

    def __init__(self, index: OpenIndex) -> None:
        """Opens the segments. Raises `ConfigError` where the file system has no O_DIRECT."""
        self._index = index
        self._opened = ExitStack()
        self._files: list[int] = []
        try:
            for path in index.segment_paths:
                self._files.append(open_direct(path))
                self._opened.callback(os.close, self._files[-1])
        except NoDirectReadError as error:
            self.close()
            raise ConfigError(
                f"the file system of {index.dir} {error}, so that a read would measure memory: "
                "copy the index to a local disk (ext4, xfs)"
            ) from error
        self._pool = self._opened.enter_context(ThreadPoolExecutor(READS_MAX))

    def begin(self, cluster: int) -> Future[ClusterPages]:
        """Begins to read a cluster; at most 16 are read at a time, the others wait in order."""
        return self._pool.submit(self.read, cluster)

    def read(self, cluster: int) -> ClusterPages:
        """Returns a cluster in memory of its own. Blocks. Raises `CorruptionError`."""
        extent, layout = self._index.extents[cluster], self._index.layout
        path = str(self._index.segment_paths[extent.segment])
        memory = mmap.mmap(-1, extent.size_bytes)
        with suppress(OSError):
            memory.madvise(mmap.MADV_HUGEPAGE)
        done = 0
        with memoryview(memory) as view:
            while done < extent.size_bytes:
                with view[done:] as rest:
                    at_bytes = extent.offset_bytes + done
                    count = os.preadv(self._files[extent.segment], [rest], at_bytes)
                if not count:
                    raise CorruptionError(
                        f"{path} ends in cluster {cluster}; restore the index or rebuild it",
                        path=path,
                        offset_bytes=at_bytes,
                    )
                done += count
        pages = np.frombuffer(memory, np.uint8).reshape(extent.page_count, layout.page_bytes)
        verify_pages(pages, extent, path=path, sums=self._index.row_sums[extent.segment])
        return ClusterPages(cluster, layout, extent.row_count, (pages,), extent.first_page)

    def latencies_us(self) -> list[float]:
        """Returns the median time to read each cluster alone, of three rounds. Blocks."""
        times: list[list[float]] = [[] for _ in self._index.extents]
        for seed in range(ROUNDS):  # in another order: what was read just before is cached
            for cluster in np.random.default_rng(seed).permutation(len(times)).tolist():
                began_s = time.perf_counter()
                self.read(cluster)
                times[cluster].append((time.perf_counter() - began_s) * 1e6)
        return [statistics.median(each) for each in times]

    def close(self) -> None:
        """Ends the reads and closes the files."""
        self._opened.close()
