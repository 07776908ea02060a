"""How many requests an LLM server gets at once, by the requests that wait inside it. Pure.

One more while the server lets none wait and has all that it may have, one fewer while some wait: a
request that waits in a server is one that Carpool could still order, cancel or give to another
server. A server that does not say how many wait keeps its number.
"""

from __future__ import annotations

FIRST = 8
FOUND_MAX = 256
"""As many as a vLLM has in a step, unless it is told otherwise."""


def next_concurrency(concurrency: int, *, in_flight: int, waiting: int | None) -> int:
    """Returns the number of requests at once after a look at a server.

    `in_flight`: our requests at the server, and slots that are kept free. `waiting`: those of all,
    ours among them, that it has not begun.
    """
    if waiting is None:
        return concurrency
    if waiting:
        return max(1, concurrency - 1)
    return min(FOUND_MAX, concurrency + 1) if in_flight >= concurrency else concurrency
