"""How a record ends that its stage does not finish: it is tried again, or becomes a dead letter.

An unexpected exception while a record is handled costs its part a try, and no other part. An
exception that belongs to no record ends the process.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, TypeVar

from carpool.dead_letters.letter import Reason, make_letter
from carpool.errors import CarpoolError, RecordError
from carpool.kafka.records import Output
from carpool.loop.stage import Done, Failure, Unit

T = TypeVar("T")


class DiedError(Exception):
    """The process died again and again with a record in hand, at last alone (ADR 0027)."""


class Ends:
    """The ends of a stage whose records owe nothing but their work. A service may write more.

    Pure; for any thread.
    """

    def __init__(self, stage: str) -> None:
        """`stage`: the name of the service, for messages and dead letters."""
        self._stage = stage

    def refused(self, unit: Unit[Any], error: Exception, *, group: str, now_us: int) -> Done:
        """Returns the end of a record that cannot be decoded (its `record` is None), or not used.

        Raises `DeploymentError` where consumption must stop at it instead.
        """
        reason = error.reason if isinstance(error, RecordError) else "processing_failed"
        letter = self._letter(unit, reason, str(error), group, 1, now_us)
        return Done(parts=unit.owed, outputs=(letter,), early="")

    def failed(self, unit: Unit[Any], part: int, error: Exception, *, now_us: int) -> Done:
        """Returns the end of a try of a part, for the loop to resolve; not after `DiedError`."""
        message = in_words(error, self._stage)
        failure = Failure(
            reason="processing_failed",
            message=message,
            is_transient=not isinstance(error, DiedError),
            letter=partial(self._letter, unit, "processing_failed", message),
        )
        return Done(parts=((unit.id, part),), outputs=(), early="failed", failure=failure)

    def _letter(
        self, unit: Unit[Any], reason: str, message: str, group: str, attempts: int, now_us: int
    ) -> Output:
        return make_letter(
            source=unit.source,
            key=unit.message.key,
            value=unit.message.value,
            headers=unit.message.headers,
            reason=Reason(
                group=group,
                stage=self._stage,
                attempts=attempts,
                class_name=reason,
                message=message,
            ),
        )


def in_words(error: Exception, stage: str) -> str:
    """Returns what ended a try, for those who wait for the record."""
    if isinstance(error, DiedError):
        return (
            f"the {stage} died twice while it had this record alone in hand, and twice before: it "
            "is not tried again. Look at how the process ended (its log, its memory), and please "
            "report it; the dead letter can be replayed"
        )
    if isinstance(error, CarpoolError):
        return str(error)
    return (
        f"the {stage} failed on this record with {type(error).__name__}: {str(error)[:500]}. This "
        "is a defect of Carpool: send it again, and please report it with the log"
    )


def one_by_one(
    items: Sequence[T], run: Callable[[Sequence[T]], object], charge: Callable[[T, Exception], None]
) -> None:
    """Runs all items together; after an exception each alone. Charges those that raise it alone.

    Raises a `CarpoolError`: no item is its cause.
    """
    try:
        run(items)
    except CarpoolError:
        raise
    except Exception as error:
        if len(items) == 1:
            charge(items[0], error)
        for item in items if len(items) > 1 else ():
            one_by_one((item,), run, charge)
