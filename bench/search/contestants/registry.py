"""The list of contestants. The module of a contestant is imported when it is needed."""

from __future__ import annotations

from fnmatch import fnmatch
from typing import Any, Literal, NamedTuple

from carpool.errors import ConfigError


class Entry(NamedTuple):
    """A contestant of `module`, which has `make(name)`.

    `is_exact`: it finds the best rows of the probed clusters. `is_limited`: it runs under the
    memory limit. `is_prepared`: `prepare(name, data, folder)` of the module writes files that it
    needs into an empty folder, once for each index, outside the measured run; the folder becomes
    `data.prepared_dir / name`. `needs_gpu`: it takes part only where it is named.
    """

    module: Literal["carpool", "faiss_lists"]
    is_exact: bool = False
    is_limited: bool = True
    is_prepared: bool = False
    needs_gpu: bool = False

    def load(self) -> Any:
        """Returns the module."""
        if self.module == "carpool":
            from bench.search.contestants import carpool

            return carpool
        from bench.search.contestants import faiss_lists

        return faiss_lists


ENTRIES = {
    "carpool": Entry("carpool"),
    "carpool-margin": Entry("carpool"),
    "carpool-exact": Entry("carpool", is_exact=True),
    **{
        f"gpu-shard-{share}": Entry("carpool", needs_gpu=True) for share in ("5", "10", "20", "all")
    },
    "faiss-memory": Entry("faiss_lists", is_exact=True, is_limited=False, is_prepared=True),
    "faiss-rabitq": Entry("faiss_lists", is_prepared=True),
}


def chosen_names(text: str | None) -> tuple[str, ...]:
    """Returns the names of `a,b`; `gpu-*` means every name that begins with `gpu-`.

    None: every contestant that needs no GPU. Raises `ConfigError` for an unknown name.
    """
    if text is None:
        return tuple(name for name, entry in ENTRIES.items() if not entry.needs_gpu)
    names: list[str] = []
    for part in (part.strip() for part in text.split(",")):
        matching = [name for name in ENTRIES if fnmatch(name, part)]
        if not matching:
            raise ConfigError(f"there is no contestant {part!r}; choose from {', '.join(ENTRIES)}")
        names += matching
    return tuple(dict.fromkeys(names))
