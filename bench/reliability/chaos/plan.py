"""The faults of a run: which process or network, how and when, drawn from a seed. Pure."""

from __future__ import annotations

import random
from collections.abc import Mapping, Sequence

import msgspec

from schemas.topics import ANSWERS, GROUPS, QUERY_TOPICS, RETRIEVALS

MEMBERS = 2
"""Processes of each service."""

Kind = str
"""One of `KINDS`."""
Range = tuple[float, float]

DEAD_S: Range = (0.0, 3.0)
"""How long a killed process stays down before it is started again."""
PAUSE_S: Range = (0.5, 12.0)
"""How long a process is paused: for some longer than the session time-out, so others take over."""

SESSION_S = 7.0
"""After it, the brokers count the members of a killed service out, and its group can be deleted."""


class KindOfFault(msgspec.Struct, frozen=True):
    """One kind. `share`: of its sort. `lasts_s`: bounds; None: it is over at once.

    `hits`: `members`, `brokers`, `LLM servers`, `indexers`, `searchers`, or what is changed.
    `is_late`: it comes after all retries, because it may remove what waits for them.
    """

    sort: str
    share: float
    hits: str | tuple[str, ...] = "members"
    lasts_s: Range | None = DEAD_S
    is_late: bool = False


KILLS, NETWORK = "kills and pauses", "network faults"
LLM_KILLS, CHANGES = "kills of LLM servers", "changes of the deployment"
AT_BASES = "kills at saves and swaps of bases"
LIMITED = (GROUPS.name, RETRIEVALS.name, ANSWERS.name)
GROUP_S: Range = (SESSION_S, SESSION_S)
KINDS: Mapping[Kind, KindOfFault] = {
    "kill in a transaction": KindOfFault(KILLS, 0.30),
    "kill": KindOfFault(KILLS, 0.25),
    "pause": KindOfFault(KILLS, 0.15, lasts_s=PAUSE_S),
    "kill a broker": KindOfFault(KILLS, 0.15, "brokers"),
    "pause a broker": KindOfFault(KILLS, 0.15, "brokers", PAUSE_S),
    "slow network": KindOfFault(NETWORK, 0.15, "brokers", (3.0, 8.0)),
    "cut": KindOfFault(NETWORK, 0.20, "brokers", None),
    "half-open": KindOfFault(NETWORK, 0.15, "brokers", (1.0, 10.0)),
    "network down": KindOfFault(NETWORK, 0.10, "brokers", (1.0, 5.0)),
    "late end of a transaction": KindOfFault(NETWORK, 0.20, "brokers", (0.2, 4.0)),
    "lost reply": KindOfFault(NETWORK, 0.20, "brokers", None),
    "kill an LLM server": KindOfFault(LLM_KILLS, 1.0, "LLM servers"),
    "kill in a save": KindOfFault(AT_BASES, 0.4, "indexers"),
    "pause in a save": KindOfFault(AT_BASES, 0.2, "indexers", PAUSE_S),
    "kill in a swap": KindOfFault(AT_BASES, 0.4, "searchers"),
    "lower a limit": KindOfFault(CHANGES, 0.22, LIMITED, (3.0, 10.0)),
    # The partitions of retrievals and answers are those of ids: an id that moves is answered anew.
    "add partitions": KindOfFault(CHANGES, 0.16, QUERY_TOPICS),
    # Retrievals that are read again have their answers. Groups would be written again.
    "delete a group": KindOfFault(CHANGES, 0.14, ("generator",), GROUP_S, is_late=True),
    "remove records": KindOfFault(CHANGES, 0.14, ("generator",), GROUP_S, is_late=True),
    "odd LLM server": KindOfFault(CHANGES, 0.16, "LLM servers", (5.0, 20.0)),
    "newer index": KindOfFault(CHANGES, 0.09, ("grouper", "searcher"), (1.0, 10.0)),
    "newer program": KindOfFault(CHANGES, 0.09, ("generator", "grouper"), (1.0, 10.0)),
}
LATE = 0.7
"""The part of the run after which no question waits for a retry."""
BEGIN_SHARE, END_SHARE = 0.04, 0.92
"""The part of the run that has faults, so that recovery from the last one is in the run too."""
DELAY_S: Range = (0.05, 0.2)
"""Delay of each request and each reply on a slow network."""
REQUESTS = ("EndTxn", "TxnOffsetCommit", "Produce")
"""The requests of Kafka's protocol whose reply may be lost."""


class PlannedFault(msgspec.Struct, frozen=True, kw_only=True):
    """One fault. `down_s`: how long the process is dead or paused, or the network fault lasts.

    `victims`: processes, the brokers whose network has the fault, or what is changed. The first
    with work in flight, or with a request to hold or drop, is hit. `delay_s`: of a slow network.
    `request`: whose reply is lost.
    """

    at_s: float
    kind: Kind
    victims: tuple[str, ...]
    down_s: float
    delay_s: float = 0.0
    request: str = ""

    @property
    def sort(self) -> str:
        return KINDS[self.kind].sort


def shares_of(sort: str) -> dict[Kind, float]:
    """Returns the share of each kind of a sort."""
    return {kind: each.share for kind, each in KINDS.items() if each.sort == sort}


def plan_faults(
    count: int,
    shares: Mapping[Kind, float],
    *,
    duration_s: float,
    seed: int,
    victims: Mapping[str, Sequence[str]],
    lasts_s: Mapping[Kind, Range] | None = None,
) -> list[PlannedFault]:
    """Returns `count` faults in order: kinds by `shares`, each in its own slice of the time.

    `victims`: names by `KindOfFault.hits`. `lasts_s`: other bounds of how long a kind lasts.
    """
    rng = random.Random(seed)
    kinds = [kind for kind, number in kind_counts(count, shares).items() for _ in range(number)]
    rng.shuffle(kinds)
    begin_s, length_s = duration_s * BEGIN_SHARE, duration_s * (END_SHARE - BEGIN_SHARE)
    faults = []
    for number, kind in enumerate(kinds):
        found = KINDS[kind]
        names = found.hits if isinstance(found.hits, tuple) else victims[found.hits]
        bounds_s = (lasts_s or {}).get(kind, found.lasts_s)
        at_s = begin_s + length_s * (number + rng.random()) / count
        faults.append(
            PlannedFault(
                at_s=max(duration_s * LATE, at_s) if found.is_late else at_s,
                kind=kind,
                victims=tuple(rng.sample(names, len(names))),
                down_s=rng.uniform(*bounds_s) if bounds_s else 0.0,
                delay_s=rng.uniform(*DELAY_S) if kind == "slow network" else 0.0,
                request=rng.choice(REQUESTS) if kind == "lost reply" else "",
            )
        )
    return sorted(faults, key=lambda each: each.at_s)


def kind_counts(count: int, shares: Mapping[Kind, float]) -> dict[Kind, int]:
    """Returns the number of faults of each kind: `shares` of `count`, largest remainders first."""
    counts = {kind: int(share * count) for kind, share in shares.items()}
    by_remainder = sorted(shares, key=lambda kind: counts[kind] - shares[kind] * count)
    for kind in by_remainder[: count - sum(counts.values())]:
        counts[kind] += 1
    return counts
