"""What goes wrong on the faulty disk of the tests."""

from __future__ import annotations

from carpool.errors import RetryableError
from tests.rig.faulty_disk import Fault, PageRead

FAIL = RetryableError("the disk said no")
SLOW = 0.002
EVERY_FAULT: tuple[Fault, ...] = (FAIL, "short", "flip", SLOW, "hang")


def no_fault(read: PageRead) -> Fault:
    """A disk that works again."""
    return None
