"""Decides what a build keeps of an interrupted one. Pure."""

from __future__ import annotations

from typing import NamedTuple

import msgspec

from indexer.plan.state import BuildIdentity, BuildState

STATE_FORMAT = "v4"
"""Another one where a constant of a build has changed: what was saved is then made again."""


class Resume(NamedTuple):
    """How a build starts: its state, whether saved shards are kept, and the changes in words."""

    state: BuildState
    keeps_shards: bool
    changes: tuple[str, ...]

    @property
    def discards(self) -> bool:
        """Whether work of the earlier build would be discarded."""
        return bool(self.changes) and not self.keeps_shards


def plan_resume(found: BuildState | None, wanted: BuildIdentity, *, now_us: int) -> Resume:
    """Returns what a build of `wanted` keeps of the interrupted build `found`.

    With another corpus: nothing. With another model: the documents. With other clusters: documents
    and vectors. With another layout: all but the segments.
    """
    fresh = BuildState(format=STATE_FORMAT, started_us=now_us, identity=wanted)
    if found is None:
        return Resume(fresh, False, ())
    if found.format != STATE_FORMAT:
        return Resume(
            fresh,
            False,
            (f"the state of the build has format {found.format!r}, not {STATE_FORMAT!r}",),
        )
    if changes := _changes("corpus", found.identity.corpus, wanted.corpus):
        return Resume(fresh, False, changes)
    if changes := _changes("vectors", found.identity.vectors, wanted.vectors):
        return Resume(msgspec.structs.replace(fresh, documents=found.documents), False, changes)
    kept = msgspec.structs.replace(found, identity=wanted)
    if changes := _changes("clusters", found.identity.clustering, wanted.clustering):
        kept = msgspec.structs.replace(kept, centroids_crc32=None, assignment=None)
    return Resume(kept, True, changes + _changes("layout", found.identity.layout, wanted.layout))


def _changes(what: str, found: msgspec.Struct, wanted: msgspec.Struct) -> tuple[str, ...]:
    pairs = (
        (name, getattr(found, name), getattr(wanted, name)) for name in found.__struct_fields__
    )
    return tuple(
        f"{what}: {name} was {old!r} and is {new!r}" for name, old, new in pairs if old != new
    )
