"""Verifies pages that were read, before they are scored."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import structlog

from carpool.arrays import UInt8
from carpool.disk.checked_file import CheckedFile
from carpool.disk.extents import ClusterExtent
from carpool.disk.pages import ClusterPages, PageLayout
from carpool.disk.segments import verify_pages
from carpool.errors import CorruptionError, ReadError, RetryableError

_log = structlog.get_logger(__name__)


class PageVerifier:
    """Checks pages of an index. Thread-safe. `paths`, and `sums`, the side files: by segment."""

    def __init__(
        self, layout: PageLayout, paths: Sequence[str], sums: Sequence[CheckedFile]
    ) -> None:
        self.layout = layout
        self.paths = paths
        self._sums = sums

    def check(self, extent: ClusterExtent, views: Sequence[memoryview]) -> ReadError | None:
        """Returns the error of a slice with damaged pages; None if its pages are undamaged.

        `views`: its pages, in order, each view of whole pages.
        """
        path = self.paths[extent.segment]
        try:
            self._check(extent, views, path)
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

    def _check(self, extent: ClusterExtent, views: Sequence[memoryview], path: str) -> None:
        first_page = 0
        for view in views:
            pages = _as_pages(view, self.layout)
            sums = self._sums[extent.segment]
            verify_pages(pages, extent, path=path, first_page=first_page, sums=sums)
            first_page += len(pages)

    def pages(self, extent: ClusterExtent, views: Sequence[memoryview]) -> ClusterPages:
        """Returns the pages of a slice that is stored in `views`, read-only."""
        pieces = tuple(_as_pages(view.toreadonly(), self.layout) for view in views)
        return ClusterPages(
            extent.cluster, self.layout, extent.row_count, pieces, extent.first_page
        )


def _as_pages(buffer: memoryview, layout: PageLayout) -> UInt8:
    return np.frombuffer(buffer, dtype=np.uint8).reshape(-1, layout.page_bytes)
