"""How tests wait: only something that hangs fails them, not a slow machine."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from typing import TypeVar

Found = TypeVar("Found")

WAIT_S = 180.0
"""How long a test waits before it calls it a hang: generous, since machines are slow and noisy."""

LOOK_EVERY_S = 0.002


def wait_until(
    holds: Callable[[], Found],
    what: str | Callable[[], object] = "the condition",
    *,
    timeout_s: float = WAIT_S,
    every_s: float = LOOK_EVERY_S,
) -> Found:
    """Calls `holds` until it returns something true, and returns that.

    Raises `AssertionError` with `what`, or with what it returns then, after `timeout_s`.
    """
    until_s = time.monotonic() + timeout_s
    while not (found := holds()):
        assert time.monotonic() < until_s, _late(what, timeout_s)
        time.sleep(every_s)
    return found


async def wait_until_async(holds: Callable[[], Found], what: str = "the condition") -> Found:
    """Waits as `wait_until` does, while the event loop goes on."""
    until_s = time.monotonic() + WAIT_S
    while not (found := holds()):
        assert time.monotonic() < until_s, _late(what, WAIT_S)
        await asyncio.sleep(LOOK_EVERY_S)
    return found


def _late(what: str | Callable[[], object], timeout_s: float) -> str:
    return f"not within {timeout_s:g} s: {what() if callable(what) else what}"
