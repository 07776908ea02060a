"""The sentences of the real passages, embedded by the product's own model and cached in a file."""

from __future__ import annotations

import hashlib
import io
import re
from collections.abc import Iterable
from pathlib import Path

import msgspec
import numpy as np
import numpy.typing as npt

from bench.core.progress import Tell
from bench.data.evaluation import Float32
from carpool.disk.files import write_atomically
from carpool.embedding import EmbeddingSettings, fingerprint_of, load_embedder
from carpool.errors import ConfigError

BATCH_ROWS = 1024
SENTENCES_MAX = 4
"""The first sentences of a passage are used: they introduce its subject."""
LETTERS_MIN = 20
"""Shorter pieces are the rests of abbreviations and initials."""
_END = re.compile(r"(?<=[.!?])\s+(?=[A-Z0-9\"(])")


class Sentences(msgspec.Struct, frozen=True, kw_only=True):
    """Embedded sentences, those of one passage side by side.

    `passages`: (rows,) int64, ascending, the passage of each; `vectors`: (rows, dim) float32,
    row-normalised.
    """

    passages: npt.NDArray[np.int64]
    vectors: Float32


def split_sentences(text: str) -> tuple[str, ...]:
    """Returns the first sentences of `text`; a text that has none is one sentence."""
    pieces = tuple(
        piece.strip() for piece in _END.split(text.strip()) if len(piece.strip()) >= LETTERS_MIN
    )
    return pieces[:SENTENCES_MAX] or (text.strip(),)


def embed_sentences(
    passages: Iterable[tuple[str, str]], *, embedding: EmbeddingSettings, cache: Path, tell: Tell
) -> Sentences:
    """Returns the sentences of `passages`, (title, text) each, embedded after their title.

    The file under `cache` is used again for the same texts and model. Blocks: a quarter of an hour
    for 16,000 passages on two cores. Raises `ConfigError` where the model is missing or the disk is
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
    path = cache / f"sentences-{_digest(texts, fingerprint_of(embedding))}.npy"
    halves = _load(path, len(texts))
    if halves is None:
        halves = _embed(texts, embedding, tell)
        content = io.BytesIO()
        np.save(content, halves, allow_pickle=False)
        try:
            cache.mkdir(parents=True, exist_ok=True)
            write_atomically(path, content.getvalue())
        except OSError as error:
            raise ConfigError(f"cannot save sentences at {path} ({error})") from error
    vectors = halves.astype(np.float32)
    vectors /= np.linalg.norm(vectors, axis=1, keepdims=True)
    return Sentences(passages=np.asarray(owners, dtype=np.int64), vectors=vectors)


def _embed(texts: list[str], embedding: EmbeddingSettings, tell: Tell) -> npt.NDArray[np.float16]:
    embedder = load_embedder(embedding)
    batches = []
    for start in range(0, len(texts), BATCH_ROWS):
        tell("sentences embedded", start, len(texts))
        batches.append(embedder.encode(texts[start : start + BATCH_ROWS]).astype(np.float16))
    tell("sentences embedded", len(texts), len(texts))
    return np.concatenate(batches)


def _load(path: Path, rows: int) -> npt.NDArray[np.float16] | None:
    """The vectors of a file, or None where it is missing or damaged."""
    try:
        loaded = np.load(path, allow_pickle=False)
    except (OSError, ValueError, EOFError):
        return None
    is_whole = isinstance(loaded, np.ndarray) and loaded.ndim == 2 and len(loaded) == rows
    return loaded if is_whole and loaded.dtype == np.float16 else None


def _digest(texts: list[str], fingerprint: str) -> str:
    digest = hashlib.sha256(fingerprint.encode())
    for text in texts:
        digest.update(f"\0{text}".encode())
    return digest.hexdigest()[:12]
