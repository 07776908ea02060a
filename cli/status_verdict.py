"""Decides which service is stuck, from the facts of brokers and services. Pure."""

from __future__ import annotations

from collections.abc import Sequence

from cli.status_values import GroupStatus, Partition, ServiceStatus


def who_is_stuck(
    name: str, group: GroupStatus, processes: Sequence[ServiceStatus], *, stuck_after_s: float
) -> str | None:
    """Returns one sentence that says why a service is stuck; None where it is not.

    A partition is stuck where records wait, no commit was seen, and either it has no owner that
    answers, or its service has not moved for `stuck_after_s`. Where the address of the service is
    not known, the age of the oldest waiting record is used instead.
    """
    still = [
        (partition, why)
        for partition in group.partitions
        if partition.waiting and not partition.has_moved
        if (why := _why(partition, group, processes, stuck_after_s)) is not None
    ]
    if not still:
        return None
    worst, why = max(still, key=lambda found: (found[0].waiting, -found[0].number))
    others = sum(partition.waiting for partition, _ in still) - worst.waiting
    more = f" ({others} more in {len(still) - 1} other partitions)" if others else ""
    return (
        f"{name} is stuck: {worst.topic}[{worst.number}] has {worst.waiting} "
        f"waiting{more}{_since(worst, processes)}; {why}"
    )


def indexes_line(processes: Sequence[ServiceStatus]) -> tuple[str, bool]:
    """Returns which index the services have, and whether all that say so have the same."""
    holders: dict[str, list[str]] = {}
    for process in processes:
        if process.index is not None:
            holders.setdefault(process.index, []).append(process.name)
    if not holders:
        return "index: no service says which", True
    parts = [f"{' and '.join(holders[version])}: {version}" for version in sorted(holders)]
    if len(parts) == 1:
        return f"index of {parts[0]}", True
    return (
        f"indexes differ: {'; '.join(parts)}. Restart the services with an older index than "
        f"{max(holders)} with that one",
        False,
    )


def _why(
    partition: Partition,
    group: GroupStatus,
    processes: Sequence[ServiceStatus],
    stuck_after_s: float,
) -> str | None:
    idle_s = _idle_s(partition, processes)
    is_late = (idle_s if idle_s is not None else partition.oldest_s or 0.0) >= stuck_after_s
    if not group.members:
        return f"its consumer group {group.name} has no members: is the service running?"
    if partition.member is None:
        return f"no member has it (the group is {group.state})" if is_late else None
    speaker = _owner(partition, processes)
    silent = [process for process in processes if not process.answers_http]
    if speaker is None and silent:
        where = " or ".join(process.address for process in silent)
        return f"member {partition.member} is assigned it and does not answer (asked at {where})"
    if not is_late:
        return None
    if speaker is None:
        return f"member {partition.member} is assigned it; say where it is with --url to ask it why"
    reasons = "; ".join(speaker.missing)
    paused = "has paused its intake" if speaker.is_paused else "lives"
    return f"member {partition.member} is assigned it and {paused}" + (
        f": {reasons}" if reasons else ""
    )


def _since(partition: Partition, processes: Sequence[ServiceStatus]) -> str:
    idle_s = _idle_s(partition, processes)
    if idle_s is not None:
        return f" and has not moved for {idle_s:.0f} s"
    return f", the oldest for {partition.oldest_s:.0f} s" if partition.oldest_s is not None else ""


def _idle_s(partition: Partition, processes: Sequence[ServiceStatus]) -> float | None:
    """Returns for how many seconds partition and service did not move; None: not known."""
    owner = _owner(partition, processes)
    if owner is None:
        return None
    own = next(
        each.idle_s
        for each in owner.partitions
        if (each.topic, each.number) == (partition.topic, partition.number)
    )
    return own if owner.idle_s is None else min(own, owner.idle_s)


def _owner(partition: Partition, processes: Sequence[ServiceStatus]) -> ServiceStatus | None:
    """Returns the process that answers and is assigned this partition."""
    for process in processes:
        if any(
            (each.topic, each.number) == (partition.topic, partition.number)
            for each in process.partitions
        ):
            return process
    return None
