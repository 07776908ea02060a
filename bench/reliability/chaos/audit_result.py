"""What the audit of a chaos run counts."""

from __future__ import annotations

import msgspec


class AuditResult(msgspec.Struct, frozen=True, kw_only=True):
    """The counts over all input records.

    `statuses`: of the answers; `stale` counts those that failed because documents came too late.
    `letters` and `replays`: dead letters, and records that replayed
    one. `removed`: without an answer, because the run removed records of them. `generated`: `ok`
    answers that repeat no other. `reused`: ids that have only the answer to an equal prompt.
    `workflows`: `ok` answers of these; `steps`: records of their steps, `texts` of which were
    generated. `read_again`: workflows that were open when offsets were deleted. `unfinished`: calls
    that these, and withdrawn and late questions, may have had beyond the counted ones.
    `slowest_s`: the longest time from a question to its answer. `documents`: counts of the corpus.
    `wrong`: how many of each kind.
    `violations`: up to 20 of each kind, with the places where the record was seen.
    """

    published: int
    statuses: dict[str, int]
    stale: int
    letters: int
    replays: int
    removed: int
    generated: int
    reused: int
    workflows: int
    steps: int
    texts: int
    read_again: int
    unfinished: int
    slowest_s: float
    documents: dict[str, int]
    wrong: dict[str, int]
    violations: tuple[str, ...]
