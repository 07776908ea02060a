"""Decides whether a service is ready: what `/readyz` says. Pure."""

from __future__ import annotations

from collections.abc import Sequence

from carpool.errors import CarpoolError


def why_not_ready(
    *,
    failure: CarpoolError | None,
    refusals: Sequence[str],
    sick: str | None,
    missing: Sequence[str],
    unreadable: Sequence[str],
    unassigned: Sequence[str],
    stalled: str | None,
) -> tuple[str, ...]:
    """Returns why a service is not ready, in words; nothing: it is.

    `failure` is why the process ends. `refusals` say what the brokers refuse; it is tried again.
    `sick` is why this member leaves its group (`MemberHealth`). `missing` is what the stage lacks.
    `unreadable` names partitions that cannot be read. No partition of the topics in `unassigned` is
    assigned to this member. `stalled` says that records wait and none is read.
    """
    reasons = [None if failure is None else str(failure), *refusals, sick, *missing, *unreadable]
    if unassigned:
        reasons.append(f"no partition of {' or '.join(unassigned)} is assigned to this member")
    return tuple(reason for reason in (*reasons, stalled) if reason is not None)
