"""Loads embedding models: the only importer of sentence-transformers and torch."""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from carpool.embedding.embedder import Embedder
from carpool.embedding.files import find_model, model_fingerprint, verify_weights
from carpool.embedding.hashing import HashingEmbedder
from carpool.embedding.settings import HASHING_PATTERN, EmbeddingSettings
from carpool.errors import ConfigError


class SentenceTransformerEmbedder:
    """A sentence-transformers model on the CPU."""

    def __init__(self, model: Any, *, fingerprint: str, batch_size: int) -> None:
        self._model = model
        self._batch_size = batch_size
        self.fingerprint = fingerprint
        self.dimension = int(model.get_embedding_dimension())

    def encode(self, texts: Sequence[str]) -> npt.NDArray[np.float32]:
        """Returns (len(texts), dimension) float32, rows L2-normalised. Blocks; one thread."""
        if not texts:
            return np.zeros((0, self.dimension), dtype=np.float32)
        vectors = self._model.encode(
            list(texts),
            batch_size=self._batch_size,
            normalize_embeddings=True,
            convert_to_numpy=True,
            show_progress_bar=False,
        )
        return np.ascontiguousarray(vectors, dtype=np.float32)


def load_embedder(settings: EmbeddingSettings) -> Embedder:
    """Returns the embedder of `settings`, ready to use. Blocks for seconds for a real model.

    Raises `ConfigError` where the model is missing, is not the one that its name says, or cannot be
    loaded by sentence-transformers.
    """
    if match := HASHING_PATTERN.fullmatch(settings.model):
        return HashingEmbedder(int(match[1]))
    folder = find_model(settings)
    verify_weights(settings, folder)
    model = _load(folder, settings)
    return SentenceTransformerEmbedder(
        model, fingerprint=model_fingerprint(folder), batch_size=settings.batch_size
    )


def fingerprint_of(settings: EmbeddingSettings) -> str:
    """Returns the fingerprint of the model of `settings` without loading it. Blocks."""
    if match := HASHING_PATTERN.fullmatch(settings.model):
        return HashingEmbedder(int(match[1])).fingerprint
    return model_fingerprint(find_model(settings))


M_MMAP_THRESHOLD = -3
MMAP_THRESHOLD_BYTES = 1 << 20


def _return_large_blocks() -> None:
    """Makes glibc return freed blocks of 1 MiB and more to the system.

    Otherwise glibc raises that limit, and activations of different lengths fragment the heap: after
    some thousand passages the process needs 400 MB more.
    """
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)
    if mallopt is not None:
        mallopt(M_MMAP_THRESHOLD, MMAP_THRESHOLD_BYTES)


def _load(folder: Path, settings: EmbeddingSettings) -> Any:
    try:
        import torch
        from sentence_transformers import SentenceTransformer
        from transformers.utils import logging as transformers_logging
    except ImportError as error:
        raise ConfigError(
            f"embedding needs the services' packages ({error}): pip install 'carpool[services]'"
        ) from error
    transformers_logging.disable_progress_bar()  # a service's standard error is JSON lines
    _return_large_blocks()
    if settings.threads:
        torch.set_num_threads(settings.threads)
    try:
        model = SentenceTransformer(str(folder), device="cpu", local_files_only=True)
    except (OSError, ValueError, KeyError, RuntimeError) as error:
        raise ConfigError(
            f"the model in {folder} cannot be loaded ({error}); check embedding.model"
        ) from error
    model.eval()
    if settings.max_tokens:
        model.max_seq_length = min(settings.max_tokens, model.max_seq_length or settings.max_tokens)
    return model
