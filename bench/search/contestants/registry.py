"""The list of contestants. The module of a contestant is imported when it is needed."""

from __future__ import annotations

from importlib import import_module
from importlib.util import find_spec
from typing import Any, NamedTuple, cast

from bench.search.contestants.contestant import Contestant
from carpool.errors import ConfigError


class Entry(NamedTuple):
    """A contestant: a class of a file of this folder, and what makes one.

    `is_limited`: it runs under the memory limit. `built_by`: the contestant whose files it
    searches; itself by default. `package`: it takes part where this can be imported. `is_default`:
    it takes part where none is named.
    """

    file: str
    kind: str
    arguments: tuple[Any, ...] = ()
    is_limited: bool = True
    built_by: str | None = None
    package: str = "faiss"
    is_default: bool = True

    def make(self) -> Contestant:
        kind = getattr(import_module(f"{__package__}.{self.file.removesuffix('.py')}"), self.kind)
        return cast(Contestant, kind(*self.arguments))


def _other(mode: str, shard_share: float = 0.0) -> Entry:
    arguments = (mode, shard_share)
    return Entry("carpool.py", "Carpool", arguments, built_by="carpool", is_default=False)


# All clusters need more than all rows, because the blocks of the GPU's memory are partly empty.
SHARES = {"5": 0.05, "10": 0.1, "20": 0.2, "all": 1.5}
ENTRIES = {
    "carpool": Entry("carpool.py", "Carpool", ("default",)),
    "carpool-exact": _other("exact"),
    **{f"gpu-shard-{name}": _other("default", share) for name, share in SHARES.items()},
    "faiss-memory": Entry("faiss_lists.py", "FaissVectors", is_limited=False),
    "faiss-rabitq": Entry("faiss_lists.py", "FaissCodes"),
    "turbovec": Entry("turbovec.py", "Turbovec", package="turbovec"),
    "svs": Entry("svs.py", "Svs", package="svs", is_limited=False),
    "usearch": Entry("usearch.py", "USearch", package="usearch", is_limited=False),
    "qdrant-edge": Entry("qdrant.py", "Qdrant", package="qdrant_edge"),
    "lancedb": Entry("lance.py", "Lance", package="lancedb"),
}


def chosen_names(text: str | None) -> tuple[str, ...]:
    """Returns the names of `a,b`, or those by default. Raises `ConfigError` for an unknown one."""
    if text is None:
        return tuple(name for name, entry in ENTRIES.items() if entry.is_default)
    names = tuple(dict.fromkeys(name.strip() for name in text.split(",")))
    if unknown := [name for name in names if name not in ENTRIES]:
        raise ConfigError(
            f"there is no contestant {unknown[0]!r}; choose from {', '.join(ENTRIES)}"
        )
    return names


def missing_packages(names: tuple[str, ...]) -> dict[str, str]:
    """Returns the package that a contestant needs and that is not installed, by name."""
    packages = {name: ENTRIES[name].package for name in names}
    return {name: package for name, package in packages.items() if not find_spec(package)}
