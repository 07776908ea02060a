"""Decides whether a service is ready, and names what is missing. Pure."""

from __future__ import annotations

from collections.abc import Sequence

NOT_STARTED = ("starting",)


def missing(
    *,
    failure: Exception | None,
    stage: Sequence[str],
    topics: Sequence[str],
    is_assigned: bool,
    stalled: str | None,
) -> tuple[str, ...]:
    """Returns why the service does not do its work, in words; empty when it is ready.

    `stage`: what the stage lacks. `stalled`: see `StallDetector.stalled`.
    """
    reasons = [] if failure is None else [str(failure)]
    reasons += stage
    if not is_assigned:
        reasons.append(f"no partition of {' or '.join(topics)} is assigned to this member")
    if stalled is not None:
        reasons.append(stalled)
    return tuple(reasons)
