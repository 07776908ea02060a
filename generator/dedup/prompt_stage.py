"""The seam between the dedup and the stage within: its protocol, and the sink that it gets."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Protocol

from carpool.loop.stage import Done, Sink, Stage, Unit
from schemas.retrieval import Retrieval


class PromptStage(Stage[Retrieval], Protocol):
    """The stage within: it knows the keys of prompts, and in which order they are sent."""

    def prompt_key(self, retrieval: Retrieval) -> str | None:
        """Returns the key of a prompt whose answer may be given again; None: of no such prompt."""
        ...

    def hasten(self, unit_id: int, priority: int, deadline_us: int | None) -> None:
        """Sends a prompt as soon as if it had this priority and deadline, unless it was sent."""
        ...

    def cancel(self, unit_id: int) -> None:
        """Ends a query that its asker has withdrawn, unless it was answered."""
        ...

    def draft(self, draft: Retrieval) -> None:
        """Takes a draft of a query whose search still runs. For any thread."""
        ...


class NotingSink:
    """A sink that first tells `ended` what is handed over, then passes it on.

    If that fails, it tells that the queries have no answer yet.
    """

    def __init__(self, sink: Sink, ended: Callable[[Done], None]) -> None:
        self._sink = sink
        self._ended = ended
        self.hint = sink.hint
        self.leave_group = sink.leave_group
        self.fail = sink.fail

    def done(self, done: Done) -> bool:
        """See `carpool.loop.stage.Sink`."""
        self._ended(done)
        is_submitted = self._sink.done(done)
        if not is_submitted:
            self._ended(Done(parts=done.parts, outputs=()))
        return is_submitted

    def charge(self, parts: Sequence[tuple[int, int]], error: Exception) -> None:
        """See `carpool.loop.stage.Sink`."""
        self._ended(Done(parts=tuple(parts), outputs=()))
        self._sink.charge(parts, error)

    def refuse(self, unit: Unit[Any], error: Exception) -> None:
        """See `carpool.loop.stage.Sink`."""
        self._ended(Done(parts=((unit.id, 0),), outputs=()))
        self._sink.refuse(unit, error)
