"""Who takes part: every contestant by its name. Light: what a contestant needs is imported when it
is opened.
"""

from __future__ import annotations

from bench.retrieval.contestant import Entry
from bench.retrieval.contestants import cagr, carpool, faiss_ivf, lancedb, listing
from carpool.errors import ConfigError

ENTRIES: dict[str, Entry] = {
    found.name: found
    for module in (faiss_ivf, cagr, listing, carpool, lancedb)
    for found in module.ENTRIES
}
REFERENCE = "faiss-memory"
"""Whose ids are exact by definition."""


def entry(name: str) -> Entry:
    """Returns a contestant. Raises `ConfigError` that lists them all for a name that there is
    not.
    """
    found = ENTRIES.get(name)
    if found is None:
        raise ConfigError(
            f"there is no contestant {name!r}; there are {', '.join(ENTRIES)}. --list says what "
            "each is"
        )
    return found
