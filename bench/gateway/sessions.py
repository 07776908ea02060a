"""When agents search, and what: sessions of agents as in a published log. Pure.

The log is that of DeepResearchGym, a search API for agents (`SOURCE`). The log itself is not
replayed: what is drawn goes through published points of it. Of sessions with several searches 90 %
have at most ten, and 89.21 % of the times between two searches are below a minute: its abstract
says both, rounded. That 47.77 % of sessions have one search, and 56 % of the times are below 10 s,
is quoted from a review of the paper, and was not checked in its text. Ours are the families, a
geometric and a log-normal one, the longest time, and that a session follows another at once. The
log's mean length is 3.6, that of what is drawn 3.3: the longest sessions are missing.
"""

from __future__ import annotations

import math
import random
from collections.abc import Iterator, Sequence
from statistics import NormalDist

SOURCE = (
    "drawn through points of: Ning et al., Agentic Search in the Wild, SIGIR 2026, arXiv 2601.17617"
)
ONE_SEARCH, AT_MOST_TEN = 0.4777, 0.90
GOES_ON = (1 - AT_MOST_TEN) ** (1 / 9)
"""The chance of one more search after the second one."""
BELOW = ((10.0, 0.56), (60.0, 0.8921))
"""Seconds between two searches, and the share of the times that are shorter."""
THINK_S_MAX = 600.0
"""A longer time would be between two sessions."""
_LOGS, _Z = [math.log(s) for s, _ in BELOW], [NormalDist().inv_cdf(share) for _, share in BELOW]
SIGMA = (_LOGS[1] - _LOGS[0]) / (_Z[1] - _Z[0])
MU = _LOGS[0] - _Z[0] * SIGMA


def think_s(drawn: random.Random, mu: float = MU) -> float:
    """Returns the seconds from a search to the next one."""
    return min(THINK_S_MAX, drawn.lognormvariate(mu, SIGMA))


def length(drawn: random.Random) -> int:
    """Returns the number of searches of a session."""
    if drawn.random() < ONE_SEARCH:
        return 1
    return 2 + int(math.log(1 - drawn.random()) / math.log(GOES_ON))


def steps(
    drawn: random.Random, related: Sequence[Sequence[int]], scale: float
) -> Iterator[tuple[float, int]]:
    """Yields without end the seconds to think, and the number of the question to search for.

    `related`: for each question its own number, then those near it. A session asks these in order,
    and repeats them if it is longer. When one ends the next one begins, after a think time too.
    """
    # An agent that thinks is met within a long time more often, and anywhere in it; so the rate of
    # many agents is the same from the start on. Biased by length, a log-normal has this mean.
    wait_s = drawn.random() * think_s(drawn, MU + SIGMA**2)
    while True:
        subject = related[drawn.randrange(len(related))]
        for at in range(length(drawn)):
            yield scale * wait_s, int(subject[at % len(subject)])
            wait_s = think_s(drawn)
