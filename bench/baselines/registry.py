"""The list of contestants. What a contestant needs is imported when the contestant is opened."""

from __future__ import annotations

from bench.baselines import (
    carpool,
    faiss_codes,
    faiss_hnsw,
    faiss_ivf,
    lancedb,
)
from bench.baselines.contestant import ContestantEntry
from carpool.errors import ConfigError

ENTRIES: dict[str, ContestantEntry] = {
    found.name: found
    for module in (faiss_ivf, faiss_hnsw, faiss_codes, carpool, lancedb)
    for found in module.ENTRIES
}
REFERENCE = "faiss-memory"
"""The contestant whose ids are exact by definition."""


def chosen_names(text: str | None, *, with_cache_budget: bool = False) -> tuple[str, ...]:
    """Returns the names of `a,b`; `gpu-*` means every name that begins with `gpu-`.

    None: every contestant that needs no GPU, or every one with a cache budget. Raises
    `ConfigError` for an unknown name.
    """
    if text is None:
        return tuple(
            name
            for name, entry in ENTRIES.items()
            if entry.has_cache_budget or not (with_cache_budget or entry.needs_gpu)
        )
    names: list[str] = []
    for part in (part.strip() for part in text.split(",")):
        if part.endswith("*"):
            matching = [name for name in ENTRIES if name.startswith(part[:-1])]
        else:
            matching = [part] if part in ENTRIES else []
        if not matching:
            raise ConfigError(
                f"there is no contestant {part!r}; choose from {', '.join(ENTRIES)}. --list "
                "describes each of them"
            )
        names.extend(name for name in matching if name not in names)
    return tuple(names)
