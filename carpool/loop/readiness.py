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

    `failure` ends the process. `refusals` are of the brokers, and are tried again. A member that is
    `sick` leaves its group (`MemberHealth`). The stage is `missing` something. The partitions in
    `unreadable` cannot be read. None of the topics in `unassigned` has a partition that is assigned
    to this member. Work is `stalled` where none ends.
    """
    reasons = [None if failure is None else str(failure), *refusals, sick, *missing, *unreadable]
    if unassigned:
        reasons.append(f"no partition of {' or '.join(unassigned)} is assigned to this member")
    return tuple(reason for reason in (*reasons, stalled) if reason is not None)
