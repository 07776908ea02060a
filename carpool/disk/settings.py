"""The section `[index]` of the settings: the folder of the index."""

from __future__ import annotations

from typing import Annotated

import msgspec

from carpool.settings import Settings


class IndexSettings(Settings, frozen=True, kw_only=True):
    """The index that a service opens at start."""

    dir: Annotated[
        str,
        msgspec.Meta(
            description="Folder of the index, as `carpool index build --out` wrote it. Grouper and "
            "searcher must name the same "
            "one: with another, groups are refused because their cluster ids mean nothing."
        ),
    ] = ".carpool/index"

    def check(self) -> list[str]:
        """Returns what is wrong: an empty folder name."""
        return [] if self.dir.strip() else ["dir is empty: name the folder of the index"]
