"""The list of contestants. The module of a contestant is imported when it is needed."""

from __future__ import annotations

from fnmatch import fnmatch
from importlib import import_module
from importlib.util import find_spec
from typing import NamedTuple, cast

from bench.search.contestants.contestant import Contestant
from carpool.errors import ConfigError


class Entry(NamedTuple):
    """A contestant of `module`, which has `make(name)`.

    `is_limited`: it runs under the memory limit. `built_by`: the contestant whose files it
    searches; itself by default. `package`: it takes part where this can be imported. `is_default`:
    it takes part where none is named.
    """

    module: str
    is_limited: bool = True
    built_by: str | None = None
    package: str = "faiss"
    is_default: bool = True

    def make(self, name: str) -> Contestant:
        """Returns a contestant."""
        return cast(Contestant, import_module(f"{__package__}.{self.module}").make(name))


OTHER_MODES = ("carpool-margin", "carpool-exact")
SHARDS = tuple(f"gpu-shard-{share}" for share in ("5", "10", "20", "all"))

ENTRIES = {
    "carpool": Entry("carpool"),
    **{
        name: Entry("carpool", built_by="carpool", is_default=False)
        for name in (*OTHER_MODES, *SHARDS)
    },
    "faiss-memory": Entry("faiss_lists", is_limited=False),
    "faiss-rabitq": Entry("faiss_lists"),
    "turbovec": Entry("turbovec", package="turbovec"),
    "svs": Entry("svs", package="svs", is_limited=False),
    "usearch": Entry("usearch", package="usearch", is_limited=False),
    "qdrant-edge": Entry("qdrant", package="qdrant_edge"),
    "lancedb": Entry("lance", package="lancedb"),
}


def chosen_names(text: str | None) -> tuple[str, ...]:
    """Returns the names of `a,b`; `gpu-*` means every name that begins with `gpu-`.

    None: those by default. Raises `ConfigError` for an unknown name.
    """
    if text is None:
        return tuple(name for name, entry in ENTRIES.items() if entry.is_default)
    names: list[str] = []
    for part in (part.strip() for part in text.split(",")):
        matching = [name for name in ENTRIES if fnmatch(name, part)]
        if not matching:
            raise ConfigError(f"there is no contestant {part!r}; choose from {', '.join(ENTRIES)}")
        names += matching
    return tuple(dict.fromkeys(names))


def missing_packages(names: tuple[str, ...]) -> dict[str, str]:
    """Returns the package that a contestant needs and that is not installed, by name."""
    packages = {name: ENTRIES[name].package for name in names}
    return {name: package for name, package in packages.items() if not find_spec(package)}
