"""The faults of a run: which process, how and when, drawn from a seed before the run. Pure."""

from __future__ import annotations

import random
from collections.abc import Sequence
from typing import Literal

import msgspec

Kind = Literal["kill", "kill in a transaction", "pause", "kill a broker", "pause a broker"]

SHARES: dict[Kind, float] = {
    "kill in a transaction": 0.30,
    "kill": 0.25,
    "pause": 0.15,
    "kill a broker": 0.15,
    "pause a broker": 0.15,
}
OF_BROKERS: frozenset[Kind] = frozenset({"kill a broker", "pause a broker"})
BEGIN_SHARE, END_SHARE = 0.04, 0.92
"""The part of the run that has faults, so that recovery from the last one is in the run too."""

DOWN_S = (0.0, 3.0)
"""How long a killed process stays down before it is started again."""

PAUSE_S = (0.5, 12.0)
"""How long a process is paused: for some longer than the session time-out, so others take over."""


class PlannedFault(msgspec.Struct, frozen=True, kw_only=True):
    """One fault. `victims`: the first with work in flight is hit; `down_s`: dead or paused for."""

    at_s: float
    kind: Kind
    victims: tuple[str, ...]
    down_s: float


def plan_faults(
    count: int, *, duration_s: float, seed: int, members: Sequence[str], brokers: Sequence[str]
) -> tuple[PlannedFault, ...]:
    """Returns `count` faults in order: kinds by `SHARES`, each in its own slice of the time."""
    rng = random.Random(seed)
    kinds = [kind for kind, number in kind_counts(count).items() for _ in range(number)]
    rng.shuffle(kinds)
    begin_s, length_s = duration_s * BEGIN_SHARE, duration_s * (END_SHARE - BEGIN_SHARE)
    faults = []
    for number, kind in enumerate(kinds):
        names = brokers if kind in OF_BROKERS else members
        faults.append(
            PlannedFault(
                at_s=begin_s + length_s * (number + rng.random()) / count,
                kind=kind,
                victims=tuple(rng.sample(names, len(names))),
                down_s=rng.uniform(*(PAUSE_S if kind.startswith("pause") else DOWN_S)),
            )
        )
    return tuple(faults)


def kind_counts(count: int) -> dict[Kind, int]:
    """Returns the number of faults of each kind: `SHARES` of `count`, largest remainders first."""
    counts = {kind: int(share * count) for kind, share in SHARES.items()}
    by_remainder = sorted(SHARES, key=lambda kind: counts[kind] - SHARES[kind] * count)
    for kind in by_remainder[: count - sum(counts.values())]:
        counts[kind] += 1
    return counts


def in_transaction_min(count: int) -> int:
    """Returns how many of `count` faults must be kills inside an open transaction."""
    return max(1, count // 6)
