"""Which model embeds, and what it may use: the section `[embedding]` of the settings."""

from __future__ import annotations

import re
from typing import Annotated

import msgspec

from carpool.settings import Settings

DEFAULT_MODEL = "all-MiniLM-L6-v2"
HASHING_PATTERN = re.compile(r"hashing:(\d+)")


class EmbeddingSettings(Settings, frozen=True, kw_only=True):
    """The embedding model, the same for index and queries; its fingerprint is compared."""

    model: Annotated[
        str,
        msgspec.Meta(
            description="The embedding model: a folder, a sentence-transformers name, or "
            "`hashing:DIMENSION` (a bag of hashed words, for tests: finds words, not meanings). "
            "Another model than the index's is refused at start."
        ),
    ] = DEFAULT_MODEL
    threads: Annotated[
        int,
        msgspec.Meta(
            ge=0,
            le=1024,
            description="Threads the model computes with; 0: one for each core. 1 takes the least "
            "CPU time; more embed a window sooner while cores are idle.",
        ),
    ] = 0

    def check(self) -> list[str]:
        """Returns what is wrong: no model, or a hashing model of a dimension that cannot be."""
        if not self.model.strip():
            return ["model is empty: name a folder or a model"]
        if self.model.startswith("hashing:"):
            match = HASHING_PATTERN.fullmatch(self.model)
            if match is None or not 1 <= int(match[1]) <= 65536:
                return [
                    f"model {self.model!r}: write hashing:DIMENSION with a dimension from 1 to "
                    "65536, for example hashing:64"
                ]
        return []
