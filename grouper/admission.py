"""Does a query fit this index? Checks its vector, model, clusters to probe and deadline."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from carpool.disk.manifest import RecallTable, is_newer
from carpool.loop.stage import Unit
from carpool.origins import deadline_us_of, index_wanted
from schemas.errors import Reason, RecordError
from schemas.query import Query


@dataclass(frozen=True, kw_only=True, slots=True)
class IndexFacts:
    """The facts of an index.

    `nprobe_default` is for queries without `nprobe`, `recall` for those with a `recall_target`; it
    is None where the index was not tuned.
    """

    index_version: str
    centroids_fingerprint: str
    embedding_model: str
    embedding_model_name: str
    dimension: int
    nlist: int
    nprobe_default: int
    recall: RecallTable | None = None

    def nprobe_for(self, recall_target: float | None) -> int:
        """Returns how many clusters a query probes that names no number."""
        if recall_target is None or self.recall is None:
            return self.nprobe_default
        return self.recall.row_for(recall_target).nprobe


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class Admitted:
    """A query that can be planned. `vector`: (dim,) float32, normalised; None: embed its text."""

    unit: Unit[Query]
    vector: NDArray[np.float32] | None
    nprobe: int
    deadline_us: int | None

    @property
    def texts(self) -> tuple[str, ...]:
        """The texts to embed: its own, if it has no vector, and those of its other searches."""
        query = self.unit.record
        other_searches = () if query.journal is None else query.journal.other_searches
        own = () if self.vector is not None else (query.text or "",)
        return own + tuple(search.text for search in other_searches)

    def is_expired(self, now_us: int) -> bool:
        """Returns whether its deadline has passed."""
        return self.deadline_us is not None and self.deadline_us <= now_us


def lags_behind(unit: Unit[Query], facts: IndexFacts) -> str | None:
    """Returns why this grouper cannot plan a query that a searcher returned; None: it can."""
    wanted = index_wanted(unit.message)
    if wanted is None or not is_newer(wanted, facts.index_version):
        return None
    return (
        f"this grouper has index {facts.index_version}, and a searcher that has the newer index "
        f"{wanted} returns what it plans. This member leaves its consumer group, so that a grouper "
        "with that index does the work; nothing is lost. Restart it with that index ([index] dir)"
    )


def admit(unit: Unit[Query], facts: IndexFacts) -> Admitted:
    """Returns the query of `unit`, ready to be planned. Does not look at the clock.

    A query with text and vector is searched by its vector. Raises `RecordError` that carries the
    query's id.
    """
    query = unit.record
    nprobe = query.nprobe or facts.nprobe_for(query.recall_target)
    if nprobe > facts.nlist:
        raise _refusal(
            query,
            "invalid_value",
            "nprobe",
            f"is {nprobe}, but the index has {facts.nlist} clusters; ask for at most that",
        )
    vector = _vector(query, query.vector, facts) if query.vector is not None else None
    if query.fetch:  # it passes through a window like the others, and is searched for nothing
        vector, nprobe = np.zeros(facts.dimension, np.float32), 1
    return Admitted(
        unit=unit,
        vector=vector,
        nprobe=nprobe,
        deadline_us=deadline_us_of(query, unit.message),
    )


def _vector(query: Query, content: bytes, facts: IndexFacts) -> NDArray[np.float32]:
    if len(content) != facts.dimension * 4:
        raise _refusal(
            query,
            "wrong_dimension",
            "vector",
            f"has {len(content) / 4:g} float32 values; the index has dimension {facts.dimension}. "
            f"Embed with {facts.embedding_model_name} ({facts.embedding_model}), or send text",
        )
    if query.embedding_model != facts.embedding_model:
        raise _refusal(
            query,
            "wrong_model",
            "embedding_model",
            f"is {query.embedding_model!r}; scores against an index of another model mean nothing. "
            f"Embed with {facts.embedding_model_name} and say {facts.embedding_model!r}, or send "
            "text",
        )
    # In float64 no sum of squares of float32 values overflows, and none of a non-zero vector
    # vanishes.
    vector = np.frombuffer(content, dtype="<f4").astype(np.float64)
    square = float(vector @ vector)
    if not math.isfinite(square):
        raise _refusal(
            query,
            "invalid_value",
            "vector",
            "holds values that are not finite; its direction is not defined",
        )
    if square == 0.0:
        raise _refusal(
            query, "invalid_value", "vector", "is all zeros: it has no direction to search in"
        )
    return (vector / math.sqrt(square)).astype(np.float32)


def _refusal(query: Query, reason: Reason, field: str, message: str) -> RecordError:
    return RecordError(reason, f"{field}: {message}", field=f"$.{field}", query_id=query.query_id)
