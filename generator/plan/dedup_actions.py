"""A query as the answer dedup sees it, and what it decides of it. Pure."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, TypeAlias

from schemas.answer import Answer
from schemas.record import Source

What = Literal["generate", "skip", "own_key", "cancel"]


@dataclass(frozen=True, kw_only=True, slots=True)
class DedupQuery:
    """A record to be answered, as published at `source`; its answer is written to `partition`.

    `digest` is that of the question; None: an earlier service has the answer, which is not `ok`.
    `prompt_key` is that of a prompt whose answer may be given again; None: there is none.
    """

    unit_id: int
    query_id: str
    source: Source
    digest: str | None
    partition: int
    priority: int = 0
    deadline_us: int | None = None
    prompt_key: str | None = None


@dataclass(frozen=True, kw_only=True, slots=True)
class EndWait:
    """A query waits no longer.

    `generate`: it has no answer. An earlier service's is written; the stage within answers
    `expired` if it is late. `skip`: its record was answered before, so it has no output. `own_key`:
    it is answered, but not `ok`, and without superseding the `ok` answer that its id has: its id
    belongs to another question; or it is late, and another record may get that answer; or an
    earlier service has its answer. `cancel`: its asker has withdrawn it; it may be generated now.
    """

    unit_id: int
    what: What


@dataclass(frozen=True, kw_only=True, slots=True)
class ReplayAnswer:
    """Answer this query with the stored answer at this offset: to its id, or to its prompt."""

    unit_id: int
    partition: int
    offset: int


@dataclass(frozen=True, kw_only=True, slots=True)
class Hasten:
    """Generate this query as soon as if it had this priority and deadline: a follower has them."""

    unit_id: int
    priority: int
    deadline_us: int | None


DedupAction: TypeAlias = EndWait | ReplayAnswer | Hasten


def is_reusable(answer: Answer) -> bool:
    """Returns whether an answer is given again to equal prompts: the model made it, without error.

    That includes text that was cut off at `max_tokens`, because the model would write it again. An
    answer that was given again does not count, so no answer outlives the horizon of the log.
    """
    return (
        answer.prompt_key is not None
        and not answer.replayed
        and answer.status in ("ok", "partial")
        and answer.error is None
    )
