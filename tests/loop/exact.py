"""A loop that delivers exactly once, on the memory broker."""

from __future__ import annotations

from carpool.loop.loop import Loop
from schemas.query import Query
from tests.loop.support import Bench, turn


class Exact(Bench):
    """A bench whose loops deliver exactly once."""

    delivery = "exactly_once"

    def wait(self, loop: Loop[Query]) -> None:
        """Lets pass what an abort, or work that does not fit, waits for."""
        self.clock.sleep(1_000_000)
        turn(loop)
