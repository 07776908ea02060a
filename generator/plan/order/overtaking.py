"""The bound of overtaking: no order lets a prompt wait without end. Pure."""

from __future__ import annotations

from collections.abc import Sequence


class Overtaking:
    """Counts how often each prompt was overtaken: a prompt that came later was sent before it.

    A prompt that was overtaken `overtaken_max` times is *due*, and goes before all that are not.
    (The starvation window of RAGCache, section 5.2.) Cost: O(prompts) a call.
    """

    def __init__(self, overtaken_max: int | None) -> None:
        """`overtaken_max` None: no bound."""
        self._overtaken_max = overtaken_max
        self._overtaken: dict[int, int] = {}

    def allowed(self, ids: Sequence[int]) -> Sequence[int]:
        """Returns those of `ids`, in the order of arrival, that may be next: all, or the due
        prompt.

        The order chooses the form of the due prompt, too.
        """
        if self._overtaken_max is None:
            return ids
        due = (id for id in ids if self._overtaken.get(id, 0) >= self._overtaken_max)
        first_due = next(due, None)
        return ids if first_due is None else (first_due,)

    def sent(self, id: int, ids: Sequence[int]) -> None:
        """Notes which of `ids` was sent."""
        if self._overtaken_max is None:
            return
        for other in ids:
            if other == id:
                break
            self._overtaken[other] = self._overtaken.get(other, 0) + 1

    def forget(self, id: int) -> None:
        """Notes that a prompt waits no more."""
        self._overtaken.pop(id, None)
