"""A sentence-transformers model in torch: the only importer of both."""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from carpool.embedding.embedder import BATCH_TEXTS
from carpool.embedding.settings import EmbeddingSettings
from carpool.errors import ConfigError


class TorchEmbedder:
    """A sentence-transformers model on the CPU. For models that cannot be exported."""

    def __init__(
        self, model: Any, *, fingerprint: str, prompt: str = "", batch_size: int = BATCH_TEXTS
    ) -> None:
        self._model = model
        self._prompt = prompt
        self._batch_size = batch_size
        self.fingerprint = fingerprint
        self.dimension = int(model.get_embedding_dimension())

    def encode(self, texts: Sequence[str]) -> npt.NDArray[np.float32]:
        """Returns (len(texts), dimension) float32, rows L2-normalised. Blocks; one thread."""
        vectors = self._model.encode(
            list(texts),
            prompt=self._prompt,
            batch_size=self._batch_size,
            normalize_embeddings=True,
            convert_to_numpy=True,
            show_progress_bar=False,
        )
        return np.ascontiguousarray(vectors, dtype=np.float32).reshape(-1, self.dimension)


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


def load_model(folder: Path, settings: EmbeddingSettings) -> Any:
    """Returns the `SentenceTransformer` of `folder`, its weights as float32. Blocks for seconds.

    Raises `ConfigError` where sentence-transformers cannot load it, or it cannot pad.
    """
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
        if getattr(getattr(model, "tokenizer", None), "pad_token", "") is None:
            raise ValueError("set `pad_token` in tokenizer_config.json, such as to its eos_token")
    except (OSError, ValueError, KeyError, RuntimeError) as error:
        raise ConfigError(
            f"the model in {folder} cannot be loaded ({error}); check embedding.model"
        ) from error
    return model.float().eval()
