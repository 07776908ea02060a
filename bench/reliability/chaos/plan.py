"""The faults of a run: which process or network, how and when, drawn from a seed. Pure."""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping, Sequence
from typing import Literal

import msgspec

from schemas.topics import ANSWERS, GROUPS, QUERY_TOPICS, RETRIEVALS

MEMBERS = 2
"""Processes of each service."""

Kind = Literal[
    "kill",
    "kill in a transaction",
    "pause",
    "kill a broker",
    "pause a broker",
    "slow network",
    "cut",
    "half-open",
    "network down",
    "late end of a transaction",
    "lost reply",
    "kill an LLM server",
    "lower a limit",
    "add partitions",
    "delete a group",
    "remove records",
    "odd LLM server",
]

PROCESS_SHARES: Mapping[Kind, float] = {
    "kill in a transaction": 0.30,
    "kill": 0.25,
    "pause": 0.15,
    "kill a broker": 0.15,
    "pause a broker": 0.15,
}
NETWORK_SHARES: Mapping[Kind, float] = {
    "slow network": 0.15,
    "cut": 0.20,
    "half-open": 0.15,
    "network down": 0.10,
    "late end of a transaction": 0.20,
    "lost reply": 0.20,
}
LLM_SHARES: Mapping[Kind, float] = {"kill an LLM server": 1.0}
STATE_SHARES: Mapping[Kind, float] = {
    "lower a limit": 0.30,
    "add partitions": 0.20,
    "delete a group": 0.15,
    "remove records": 0.15,
    "odd LLM server": 0.20,
}
CHANGED: Mapping[Kind, tuple[str, ...]] = {
    "lower a limit": (GROUPS.name, RETRIEVALS.name, ANSWERS.name),
    # The partitions of retrievals and answers are those of ids: an id that moves is answered anew.
    "add partitions": QUERY_TOPICS,
    # Retrievals that are read again have their answers. Groups would be written again.
    "delete a group": ("generator",),
    "remove records": ("generator",),
}
"""What a fault changes, if not a process."""
NO_RETRIES_AFTER = 0.7
"""The part of the run after which no question waits for a retry, and groups and records may go."""
OF_LLM: frozenset[Kind] = frozenset(LLM_SHARES)
OF_BROKERS: frozenset[Kind] = frozenset({"kill a broker", "pause a broker"})
OF_NETWORK: frozenset[Kind] = frozenset(NETWORK_SHARES)
OF_STATES: frozenset[Kind] = frozenset(STATE_SHARES)
BEGIN_SHARE, END_SHARE = 0.04, 0.92
"""The part of the run that has faults, so that recovery from the last one is in the run too."""

DEAD_S = (0.0, 3.0)
"""How long a killed process stays down before it is started again."""

PAUSE_S = (0.5, 12.0)
"""How long a process is paused: for some longer than the session time-out, so others take over."""

LASTS_S: Mapping[Kind, tuple[float, float]] = {
    "pause": PAUSE_S,
    "pause a broker": PAUSE_S,
    "slow network": (3.0, 8.0),
    "half-open": (1.0, 10.0),
    "network down": (1.0, 5.0),
    "late end of a transaction": (0.2, 4.0),
    "lower a limit": (3.0, 10.0),
    "odd LLM server": (5.0, 20.0),
}
DELAY_S = (0.05, 0.2)
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


def plan_faults(
    count: int,
    *,
    shares: Mapping[Kind, float] = PROCESS_SHARES,
    duration_s: float,
    seed: int,
    members: Sequence[str],
    brokers: Sequence[str],
    lasts_s: Mapping[Kind, tuple[float, float]] = LASTS_S,
) -> tuple[PlannedFault, ...]:
    """Returns `count` faults in order: kinds by `shares`, each in its own slice of the time.

    `lasts_s`: the bounds of how long each kind lasts.
    """
    rng = random.Random(seed)
    kinds = [kind for kind, number in kind_counts(count, shares).items() for _ in range(number)]
    rng.shuffle(kinds)
    begin_s, length_s = duration_s * BEGIN_SHARE, duration_s * (END_SHARE - BEGIN_SHARE)
    faults = []
    for number, kind in enumerate(kinds):
        names = CHANGED.get(kind, brokers if kind in OF_BROKERS | OF_NETWORK else members)
        is_late = kind in ("delete a group", "remove records")
        least_s = duration_s * NO_RETRIES_AFTER if is_late else 0.0
        faults.append(
            PlannedFault(
                at_s=max(least_s, begin_s + length_s * (number + rng.random()) / count),
                kind=kind,
                victims=tuple(rng.sample(names, len(names))),
                down_s=_lasting(kind, lasts_s, rng.uniform),
                delay_s=rng.uniform(*DELAY_S) if kind == "slow network" else 0.0,
                request=rng.choice(REQUESTS) if kind == "lost reply" else "",
            )
        )
    return interleaved(faults)


def _lasting(
    kind: Kind,
    lasts_s: Mapping[Kind, tuple[float, float]],
    uniform: Callable[[float, float], float],
) -> float:
    if kind in ("cut", "lost reply"):
        return 0.0
    return uniform(*lasts_s.get(kind, DEAD_S))


def interleaved(*plans: Sequence[PlannedFault]) -> tuple[PlannedFault, ...]:
    """Returns the faults of all plans in the order of their times."""
    return tuple(sorted((each for plan in plans for each in plan), key=lambda each: each.at_s))


def kind_counts(count: int, shares: Mapping[Kind, float] = PROCESS_SHARES) -> dict[Kind, int]:
    """Returns the number of faults of each kind: `shares` of `count`, largest remainders first."""
    counts = {kind: int(share * count) for kind, share in shares.items()}
    by_remainder = sorted(shares, key=lambda kind: counts[kind] - shares[kind] * count)
    for kind in by_remainder[: count - sum(counts.values())]:
        counts[kind] += 1
    return counts


def in_transaction_min(count: int) -> int:
    """Returns how many of `count` faults must be kills inside an open transaction."""
    return max(1, count // 6)
