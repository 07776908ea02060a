"""Which base is the current one, by the log of their announcements (ADR 0031). Pure."""

from __future__ import annotations

from carpool.kafka.records import Message
from schemas.codec import decode
from schemas.document import Base, BaseWanted
from schemas.events import EVENT_TYPES
from schemas.record import header

KEPT = 2
"""The current base and the one before it stay on disk: a search may still use the latter."""


def is_announcement(message: Message) -> bool:
    """Returns whether a record of `rag.bases.v1` announces a base; else it asks for one."""
    return header(message.headers, "ce_type") == EVENT_TYPES[Base].encode()


class Bases:
    """Follows the announcements in the order of their log. Not thread-safe."""

    def __init__(self) -> None:
        self._line: list[Base] = []
        self.wanted: BaseWanted | None = None
        """What somebody asks for, and no base has met yet."""
        self.requests = 0
        """The requests that were heard are before this offset of `rag.bases.v1`."""
        self.is_whole = False
        """Whether all that the log has was heard, for whoever reads it."""

    @property
    def current(self) -> Base | None:
        """The current base; None before the first one was announced."""
        return self._line[-1] if self._line else None

    @property
    def kept(self) -> tuple[Base, ...]:
        """The bases that may still be in use, the newest last."""
        return tuple(self._line[-KEPT:])

    def hear(self, message: Message) -> bool:
        """Takes the next record of `rag.bases.v1`; False: a base that does not count."""
        if is_announcement(message):
            return self.announced(decode(Base, message.value, message.headers))
        self.wanted = decode(BaseWanted, message.value, message.headers)
        self.requests = message.source.offset + 1
        return True

    def announced(self, base: Base) -> bool:
        """Takes the next announcement; False: it does not count, since another one was faster.

        Of two savers that began with the same base the first in the log wins. Clocks do not matter.
        The first base of a newer index counts, too: that index was built with all documents.
        """
        current = self.current
        is_next = base.predecessor == (None if current is None else current.name)
        is_of_new_index = current is not None and base.index_version > current.index_version
        if not is_next and not is_of_new_index:
            return False
        self._line = [*self._line[1 - KEPT :], base]
        if base.requests >= self.requests:
            self.wanted = None
        return True

    def knows(self, name: str) -> bool:
        """Returns whether a base is the current one or the one before it."""
        return any(base.name == name for base in self._line)
