"""Verifies pages that were read, before they are scored."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import structlog

from carpool.disk.checked_file import CheckedFile
from carpool.disk.extents import ClusterExtent
from carpool.disk.pages import ClusterPages, PageLayout, UInt8
from carpool.disk.segments import verify_pages
from carpool.errors import CorruptionError, RetryableError
from searcher.memory.cluster_reads import Block
from searcher.store.engine import BlockError

_log = structlog.get_logger(__name__)


class PageVerifier:
    """Checks the pages of the index build `build_id`. Thread-safe.

    `paths`: by segment; `sums`: the side files by segment, from format v2 on.
    """

    def __init__(
        self,
        layout: PageLayout,
        build_id: int,
        paths: Sequence[str],
        sums: Sequence[CheckedFile] = (),
    ) -> None:
        self.layout = layout
        self._build_id = build_id
        self._paths = paths
        self._sums = sums

    def check(self, block: Block) -> BlockError | None:
        """Returns the error of a block with damaged pages; None if its pages are undamaged."""
        path = self._paths[block.load.extent.segment]
        try:
            self._check(block, path)
        except CorruptionError as error:
            # A new error: the traceback of the old one would keep the pages.
            return CorruptionError(
                f"{error}. The cluster is skipped, never scored; `carpool index verify` lists all "
                "that is damaged",
                path=error.path,
                offset_bytes=error.offset_bytes,
            )
        except Exception as error:  # an unexpected error must not leave a query waiting
            _log.exception("pages could not be checked", path=path)
            return RetryableError(f"pages of {path} could not be checked: {error!r}")
        return None

    def _check(self, block: Block, path: str) -> None:
        start_bytes = block.start_bytes
        for buffer in block.buffers:
            verify_pages(
                _as_pages(buffer, self.layout),
                block.load.extent,
                build_id=self._build_id,
                path=path,
                first_page=start_bytes // self.layout.page_bytes,
                sums=self._sums[block.load.extent.segment] if self._sums else None,
            )
            start_bytes += buffer.nbytes

    def pages(self, extent: ClusterExtent, views: Sequence[memoryview]) -> ClusterPages:
        """Returns the pages of a slice that is stored in `views`, read-only."""
        pieces = []
        left_bytes = extent.size_bytes
        for view in views:
            used = view[:left_bytes].toreadonly()
            left_bytes -= used.nbytes
            pieces.append(_as_pages(used, self.layout))
        return ClusterPages(
            extent.cluster, self.layout, extent.row_count, tuple(pieces), extent.first_page
        )

    def timed_out(self, extent: ClusterExtent, timeout_us: int) -> RetryableError:
        """Returns the error of a read that did not end within `timeout_us`."""
        return RetryableError(
            f"cluster {extent.cluster} at byte {extent.offset_bytes} of "
            f"{self._paths[extent.segment]} did not come within {timeout_us / 1_000_000:g} s: the "
            "disk hangs, or is too slow. The memory of this read stays out of use until the kernel "
            "returns it. Check the disk; if it is only slow, raise [searcher] read_timeout_ms"
        )


def _as_pages(buffer: memoryview, layout: PageLayout) -> UInt8:
    return np.frombuffer(buffer, dtype=np.uint8).reshape(-1, layout.page_bytes)
