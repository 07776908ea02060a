"""Verifies pages that were read, before they are scored."""

from __future__ import annotations

from collections.abc import Sequence

import structlog

from carpool.disk.extents import ClusterExtent
from carpool.disk.pages import ClusterPages, PageLayout
from carpool.errors import RetryableError
from searcher.memory.cluster_reads import Block, cluster_pages, damage, timed_out
from searcher.store.engine import BlockError

_log = structlog.get_logger(__name__)


class PageVerifier:
    """Checks the pages of the index build `build_id`. Thread-safe; `paths`: by segment."""

    def __init__(self, layout: PageLayout, build_id: int, paths: Sequence[str]) -> None:
        self.layout = layout
        self._build_id = build_id
        self._paths = paths

    def check(self, block: Block) -> BlockError | None:
        """Returns what is wrong with the pages of a block; None: they are as they were written."""
        path = self._paths[block.load.extent.segment]
        try:
            return damage(block, self.layout, build_id=self._build_id, path=path)
        except Exception as error:  # a fault of this code must not leave a query waiting
            _log.exception("pages could not be checked", path=path)
            return RetryableError(f"pages of {path} could not be checked: {error!r}")

    def pages(self, extent: ClusterExtent, views: Sequence[memoryview]) -> ClusterPages:
        """Returns the pages of a slice that is stored in `views`, read-only."""
        return cluster_pages(extent, self.layout, views)

    def timed_out(self, extent: ClusterExtent, timeout_us: int) -> RetryableError:
        """Returns the error of a read that did not end within `timeout_us`."""
        return timed_out(extent, self._paths[extent.segment], timeout_us)
