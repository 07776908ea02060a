"""The sentences of the real passages, embedded by the product's own model, saved shard by shard."""

from __future__ import annotations

import hashlib
import io
import re
from collections.abc import Callable, Iterable
from pathlib import Path

import msgspec
import numpy as np
import numpy.typing as npt

from bench.data.evaluation import Float32
from carpool.disk.files import write_atomically
from carpool.embedding import EmbeddingSettings, fingerprint_of, load_embedder
from carpool.errors import ConfigError

SHARD_ROWS = 1024
SENTENCES_MAX = 4
"""Sentences of a passage that are taken: introductions say what they are about at their
beginning.
"""
LETTERS_MIN = 20
"""Shorter pieces are rests of abbreviations and initials."""
_END = re.compile(r"(?<=[.!?])\s+(?=[A-Z0-9\"(])")

Tell = Callable[[str, int, int], None]


class Sentences(msgspec.Struct, frozen=True, kw_only=True):
    """Embedded sentences, those of one passage side by side.

    `passages`: (rows,) int64, ascending, the passage of each; `vectors`: (rows, dim) float32,
    row-normalised.
    """

    passages: npt.NDArray[np.int64]
    vectors: Float32


def split_sentences(text: str) -> tuple[str, ...]:
    """Returns the first sentences of `text`, at most `SENTENCES_MAX`; a text that has none is one
    sentence.
    """
    pieces = tuple(
        piece.strip() for piece in _END.split(text.strip()) if len(piece.strip()) >= LETTERS_MIN
    )
    return pieces[:SENTENCES_MAX] or (text.strip(),)


def embed_sentences(
    passages: Iterable[tuple[str, str]], *, embedding: EmbeddingSettings, cache: Path, tell: Tell
) -> Sentences:
    """Returns the sentences of `passages`, (title, text) each, embedded as the passages are: after
    their title.

    What is saved under `cache` is used again, so a run that was killed goes on where it was;
    another corpus, model or way to split gets a folder of its own. Blocks: a quarter of an hour for
    16,000 passages on two cores. Raises `ConfigError` where the model is missing or the disk is
    full.
    """
    texts: list[str] = []
    owners: list[int] = []
    for number, (title, text) in enumerate(passages):
        for sentence in split_sentences(text):
            texts.append(f"{title}. {sentence}" if title else sentence)
            owners.append(number)
    if not texts:
        raise ConfigError("the corpus has no passages, so there are no sentences to grow from")
    folder = cache / f"sentences-{_digest(texts, fingerprint_of(embedding))}"
    starts = range(0, len(texts), SHARD_ROWS)
    shards = [folder / f"shard-{number:05d}.npy" for number in range(len(starts))]
    missing = [number for number, shard in enumerate(shards) if _load(shard) is None]
    if missing:
        _embed_missing(missing, texts, shards, embedding, tell)
    loaded = [_load(shard) for shard in shards]
    vectors = np.concatenate([shard for shard in loaded if shard is not None]).astype(np.float32)
    if len(vectors) != len(texts):
        raise ConfigError(
            f"{folder} holds {len(vectors)} of {len(texts)} sentences; remove the folder and run "
            "it again"
        )
    vectors /= np.linalg.norm(vectors, axis=1, keepdims=True)
    return Sentences(passages=np.asarray(owners, dtype=np.int64), vectors=vectors)


def _embed_missing(
    missing: list[int],
    texts: list[str],
    shards: list[Path],
    embedding: EmbeddingSettings,
    tell: Tell,
) -> None:
    embedder = load_embedder(embedding)
    for done, number in enumerate(missing):
        tell("sentences embedded", done * SHARD_ROWS, len(missing) * SHARD_ROWS)
        vectors = embedder.encode(texts[number * SHARD_ROWS : (number + 1) * SHARD_ROWS])
        content = io.BytesIO()
        np.save(content, vectors.astype(np.float16), allow_pickle=False)
        try:
            shards[number].parent.mkdir(parents=True, exist_ok=True)
            write_atomically(shards[number], content.getvalue())
        except OSError as error:
            raise ConfigError(
                f"cannot save sentences at {shards[number]} ({error}); what was saved is kept"
            ) from error
    tell("sentences embedded", len(missing) * SHARD_ROWS, len(missing) * SHARD_ROWS)


def _load(path: Path) -> npt.NDArray[np.float16] | None:
    """The vectors of a shard, or None where it is missing or damaged."""
    try:
        loaded = np.load(path, allow_pickle=False)
    except (OSError, ValueError, EOFError):
        return None
    return (
        loaded
        if isinstance(loaded, np.ndarray) and loaded.ndim == 2 and loaded.dtype == np.float16
        else None
    )


def _digest(texts: list[str], fingerprint: str) -> str:
    digest = hashlib.sha256(fingerprint.encode())
    for text in texts:
        digest.update(f"\0{text}".encode())
    return digest.hexdigest()[:12]
