"""Swaps the base of a searcher when a newer one was saved, between two searches (ADR 0031).

A search ends with the base with which it began. Where two bases do not fit the budget, the old one
is closed first, and searches wait meanwhile.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from pathlib import Path

import structlog

from carpool.clock import Clock
from carpool.corpus.base_folders import bases_dir, is_here
from carpool.errors import CarpoolError
from carpool.telemetry.metrics import Metrics
from carpool.worker import Worker
from schemas.document import Base
from searcher.build import OpenSearcher, has_room_for_two
from searcher.in_hand import InHand

_log = structlog.get_logger(__name__)

LOOK_S = 0.1
RETRY_S = 5.0
SHORT_S = 0.002
"""How often it looks whether searches have ended."""


class BaseSwaps:
    """See the module. `run` is for a thread of its own, `tick` for the polling thread."""

    def __init__(
        self,
        worker: Worker[OpenSearcher],
        in_hand: InHand,
        open_base: Callable[[Base], OpenSearcher],
        search: Callable[[OpenSearcher], object],
        index_dir: Path,
        metrics: Metrics,
        clock: Clock,
    ) -> None:
        """`search` runs the executor of an opened base until it is stopped."""
        self._worker = worker
        self._in_hand = in_hand
        self._open_base = open_base
        self._search = search
        self._index_dir = index_dir
        self._metrics = metrics.corpus
        self._clock = clock
        self._ticks = 0
        self._closing = threading.Event()
        self.is_pausing = False
        """Whether nothing may be searched now."""
        self.trouble = ""
        """Why the newest base is not used, in words; "" if it is."""

    def tick(self) -> None:
        """The polling thread has finished what it began before."""
        self._ticks += 1

    def stop(self) -> None:
        """Makes `run` return soon."""
        self._closing.set()

    def run(self) -> None:
        """Follows the announcements, until `stop`."""
        while not self._closing.wait(LOOK_S):
            if (opened := self._worker.parts) is None:
                continue
            if opened.follower is None:
                return
            base = opened.follower.newer_base
            if base is None:
                continue
            if base.index_version != opened.manifest.index_version:
                self.trouble = (
                    f"the base {base.name} has new centroids: restart groupers and searchers"
                )
            elif is_here(self._index_dir, base):
                self._try(opened, base)
            else:
                folder = bases_dir(self._index_dir) / base.folder
                self.trouble = (
                    f"the base {base.name} is not at {folder}: copy this folder from the machine "
                    "of the indexer, or share it"
                )

    def _try(self, old: OpenSearcher, base: Base) -> None:
        """Swaps, or says why it cannot: a folder that is being copied is whole later."""
        try:
            self._swap(old, base)
            self.trouble = ""
        except CarpoolError as error:
            if self.is_pausing:
                raise  # there is nothing left to search with
            _log.error("a base cannot be opened", base=base.name, error=str(error))
            self.trouble = f"the base {base.name} cannot be opened: {error}"
            self._closing.wait(RETRY_S)

    def _swap(self, old: OpenSearcher, base: Base) -> None:
        began_us = self._clock.now_us()
        folder = bases_dir(self._index_dir) / base.folder
        if pauses := not (old.has_room and has_room_for_two(folder, old.settings)):
            _log.warning("searches pause: two bases do not fit searcher.budget_bytes")
            self.is_pausing = True
            self._close(old)
        new, base = self._open_whole(base)
        if not self._worker.replace(new):
            new.close()
            return
        self._worker.spawn("search", lambda: self._search(new))
        if not pauses:
            self._close(old)
        self.is_pausing = False
        took_us = self._clock.now_us() - began_us
        self._metrics.base_swaps.labels(how="paused" if pauses else "beside").inc()
        _log.info("a newer base is searched", base=base.name, rows=base.rows, took_us=took_us)

    def _open_whole(self, base: Base) -> tuple[OpenSearcher, Base]:
        """Opens a base with the documents after it, or a newer one: these may have no room."""
        new = self._open_base(base)
        assert new.follower is not None, "it was opened with the documents after it"
        while new.follower.not_ready() and not self._closing.wait(SHORT_S):
            newer = new.follower.newer_base
            if newer is None or newer.index_version != base.index_version:
                continue
            if is_here(self._index_dir, newer):
                new.close()
                return self._open_whole(newer)
        return new, base

    def _close(self, old: OpenSearcher) -> None:
        """Closes a base when its last search has ended; no new one begins any more."""
        ticks = self._ticks
        while self._ticks == ticks or self._in_hand.uses(old):
            if self._closing.wait(SHORT_S):
                break
        old.executor.stop()
        old.ended.wait()
        old.close()
