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
    batch_size: Annotated[
        int,
        msgspec.Meta(
            ge=1,
            le=4096,
            description="Texts in one pass through the model. Too low wastes time on overhead, too "
            "high takes memory and, on a CPU, time: 16 texts of 256 tokens need 110 MB more than 8 "
            "with the default model, and a fifth more time.",
        ),
    ] = 8
    threads: Annotated[
        int,
        msgspec.Meta(
            ge=0,
            le=1024,
            description="Threads the model computes with; 0: one for each core. Too "
            "low is slow, too high takes cores from other processes.",
        ),
    ] = 0
    max_tokens: Annotated[
        int,
        msgspec.Meta(
            ge=0,
            le=65536,
            description="Tokens of a text that the model reads, the rest is cut; 0 takes the "
            "model's own limit, and more than that is never read. Too low loses the ends of "
            "passages, too high makes long texts slow.",
        ),
    ] = 0
    download: Annotated[
        bool,
        msgspec.Meta(
            description="Whether a model that is not on this machine may be fetched from the "
            "Hugging Face hub at start. Off, a missing model is an error that says how to get it."
        ),
    ] = False

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
