"""Makes the records of drafts: the best passages that a long search has found so far."""

from __future__ import annotations

from collections.abc import Container
from dataclasses import dataclass, field

from carpool.disk.documents import Passage
from carpool.kafka.records import Output
from schemas.group import Group
from searcher.executor import SearchDraft, hits_of
from searcher.results import draft_output
from searcher.row_source import RowPassages
from searcher.scoring.top_k import TopK

DRAFT_HITS_MAX = 8
"""Passages of a draft. A prompt has three by default; a passage takes a kilobyte in each draft."""


@dataclass(slots=True)
class _Sent:
    revision: int = 0
    passages: dict[int, Passage] = field(default_factory=dict)  # of the last draft, by row


class DraftRecords:
    """Makes the records of drafts, and reads a passage once while it stays in them.

    For one thread.
    """

    def __init__(self) -> None:
        self._sent: dict[int, _Sent] = {}  # by the key of the search

    def keep_only(self, keys: Container[int]) -> None:
        """Forgets searches that are not among `keys`."""
        for key in [key for key in self._sent if key not in keys]:
            del self._sent[key]

    def output(
        self,
        key: int,
        group: Group,
        part: int,
        found: SearchDraft,
        reader: RowPassages,
        now_us: int,
    ) -> Output | None:
        """Returns the next draft of a search; None where it has nothing to show. Blocks."""
        sent = self._sent.setdefault(key, _Sent())
        scores, row_numbers, clusters = found.best
        most = slice(DRAFT_HITS_MAX)
        best = TopK(scores[most], row_numbers[most], clusters[most])
        rows = best.rows.tolist()
        unread = [row for row in rows if row not in sent.passages]
        passages = {row: sent.passages[row] for row in rows if row in sent.passages}
        for _, read in reader.read([unread]) if unread else ():
            if not isinstance(read, list):
                return None  # the final result reports the error
            passages |= zip(unread, read, strict=True)
        sent.passages = passages
        if not passages:
            return None
        sent.revision += 1
        return draft_output(
            group,
            part,
            found,
            hits_of(best, [passages[row] for row in rows]),
            revision=sent.revision,
            now_us=now_us,
        )
