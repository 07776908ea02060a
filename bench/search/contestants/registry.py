"""The list of contestants. What a contestant needs is imported when the contestant is opened."""

from __future__ import annotations

from bench.search.contestants import carpool, faiss_codes, faiss_vectors, lancedb
from bench.search.contestants.contestant import ContestantEntry
from carpool.errors import ConfigError

ENTRIES: dict[str, ContestantEntry] = {
    entry.name: entry
    for module in (carpool, faiss_vectors, faiss_codes, lancedb)
    for entry in module.ENTRIES
}


def chosen_names(text: str | None) -> tuple[str, ...]:
    """Returns the names of `a,b`; `gpu-*` means every name that begins with `gpu-`.

    None: every contestant that needs nothing more. Raises `ConfigError` for an unknown name.
    """
    if text is None:
        return tuple(name for name, entry in ENTRIES.items() if not entry.needs)
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
