"""The executor of an index with codes: exact searches go to one executor, others to another."""

from __future__ import annotations

import threading
from collections.abc import Collection
from dataclasses import replace

from threadpoolctl import threadpool_limits  # type: ignore[import-untyped]

from searcher.executor import Executor, Finish, SearchGroup


class ExecutorByMode:
    """Implements `Executor`. `exact` runs on a thread of its own, so `finish` is called by two."""

    def __init__(self, codes: Executor, exact: Executor) -> None:
        self._codes = codes
        self._exact = exact
        self._error: BaseException | None = None

    def join(self, group: SearchGroup) -> None:
        """Adds a group; see `Executor.join`."""
        exact = tuple(search for search in group.searches if search.mode == "exact")
        others = tuple(search for search in group.searches if search.mode != "exact")
        if exact:
            # `next` and `horizon` are about queries of which most read no cluster.
            self._exact.join(replace(group, searches=exact, next_query=(), horizon={}))
        if others:
            self._codes.join(replace(group, searches=others))

    def drop(self, keys: Collection[int]) -> None:
        """Forgets searches; see `Executor.drop`."""
        self._codes.drop(keys)
        self._exact.drop(keys)

    def run(self, finish: Finish) -> None:
        """Runs both; see `Executor.run`."""
        thread = threading.Thread(
            target=self._run_exact, args=(finish,), name="search-exact", daemon=True
        )
        thread.start()
        try:
            self._codes.run(finish)
        finally:
            self._exact.stop()
            thread.join()
        if self._error is not None:
            raise self._error

    def stop(self) -> None:
        """Makes `run` return soon; see `Executor.stop`."""
        self._codes.stop()

    def check_integrity(self) -> None:
        """Checks both executors; see `Executor`."""
        self._codes.check_integrity()
        self._exact.check_integrity()

    def _run_exact(self, finish: Finish) -> None:
        try:
            with threadpool_limits(limits=1, user_api="blas"):
                self._exact.run(finish)
        except BaseException as error:  # raised by `run`, on the search thread
            self._error = error
            self._codes.stop()
