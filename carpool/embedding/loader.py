"""Loads embedding models: in ONNX Runtime where they can be exported, else in torch.

The model of questions has a cache: a text that is asked again is not embedded again.
"""

from __future__ import annotations

import hashlib
import logging
import os
from collections import OrderedDict
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import numpy.typing as npt

from carpool.disk.manifest import Manifest
from carpool.embedding.embedder import Embedder
from carpool.embedding.export import export_in_child, export_name
from carpool.embedding.files import find_model, model_fingerprint, prompt_of, verify_weights
from carpool.embedding.hashing import HashingEmbedder
from carpool.embedding.settings import HASHING_PATTERN, EmbeddingSettings
from carpool.embedding.torch_embedder import TorchEmbedder, load_model
from carpool.errors import ConfigError

log = logging.getLogger(__name__)  # not structlog: commands do not set it up


def load_embedder(settings: EmbeddingSettings, *, are_passages: bool = False) -> Embedder:
    """Returns the embedder of questions, or of passages. Blocks for seconds for a real model.

    They differ in the model's prompt. The first load exports the model. Raises `ConfigError` where
    it is missing, is not what its name says, or cannot be loaded by sentence-transformers.
    """
    if match := HASHING_PATTERN.fullmatch(settings.model):
        return HashingEmbedder(int(match[1]))
    folder = find_model(settings)
    verify_weights(settings, folder)
    fingerprint, prompt = model_fingerprint(folder), prompt_of(folder, are_passages=are_passages)
    try:
        return _open_export(folder, settings.threads, fingerprint, prompt)
    except Exception as error:  # every reason has the same remedy
        model = load_model(folder, settings)
        log.warning(
            f"{folder} is embedded by torch, which takes more time and memory: ONNX Runtime cannot "
            f"({error})"
        )
    return TorchEmbedder(model, fingerprint=fingerprint, prompt=prompt)


def load_question_embedder(settings: EmbeddingSettings, manifest: Manifest) -> Embedder:
    """Returns the embedder of questions to the index of `manifest`, with a cache. Blocks.

    Raises `ConfigError` as `load_embedder`, and where the index was built with another model.
    """
    model = load_embedder(settings)
    if model.fingerprint != manifest.embedding_model:
        raise ConfigError(
            f"the embedding model {settings.model} (fingerprint {model.fingerprint}) is not the "
            f"one that the index was built with ({manifest.embedding_model_name}, "
            f"{manifest.embedding_model}), so scores between them mean nothing: name that model "
            "(embedding.model, --model), or rebuild the index with this one"
        )
    return CachedEmbedder(model)


def fingerprint_of(settings: EmbeddingSettings) -> str:
    """Returns the fingerprint of the model of `settings` without loading it. Blocks."""
    if match := HASHING_PATTERN.fullmatch(settings.model):
        return HashingEmbedder(int(match[1])).fingerprint
    return model_fingerprint(find_model(settings))


def _open_export(folder: Path, threads: int, fingerprint: str, prompt: str) -> Embedder:
    """Opens the export next to the weights or in the user's cache; makes it there if need be."""
    from carpool.embedding.onnx_embedder import OnnxEmbedder

    def opened(file: Path) -> Embedder:
        return OnnxEmbedder(file, fingerprint=fingerprint, prompt=prompt, threads=threads)

    cache = Path(os.environ.get("XDG_CACHE_HOME") or "~/.cache").expanduser() / "carpool"
    name = export_name(fingerprint)
    for place in (folder / "onnx", cache):
        if (place / name).is_file():
            try:
                return opened(place / name)
            except Exception as error:
                log.warning(f"{place / name} is damaged ({error}): the model is exported again")
    export_in_child(folder, cache)
    return opened(cache / name)


TEXTS_MAX = 1_000
"""Vectors in the cache: 1.5 MB at 384 dimensions."""


class CachedEmbedder:
    """An embedder with a cache by text. The least recently used text leaves the cache.

    An equal text gets the bytes that were computed first; computed again, the last bits may differ,
    because they depend on the texts in the same pass. A failure empties the cache, so a broken
    model is not hidden by texts that it embedded before.
    """

    def __init__(self, model: Embedder, texts_max: int = TEXTS_MAX) -> None:
        """`texts_max`: vectors in the cache."""
        self._model = model
        self._texts_max = texts_max
        self._rows: OrderedDict[bytes, npt.NDArray[np.float32]] = OrderedDict()
        self.fingerprint = model.fingerprint
        self.dimension = model.dimension
        self.computed = 0
        """Texts that the model embedded; the others were known."""

    def encode(self, texts: Sequence[str]) -> npt.NDArray[np.float32]:
        """Returns (len(texts), dimension) float32, rows L2-normalised. Blocks; one thread.

        Raises `ValueError` where the model gives something else.
        """
        keys = [hashlib.sha256(text.encode(errors="surrogatepass")).digest() for text in texts]
        new = {key: text for key, text in zip(keys, texts, strict=True) if key not in self._rows}
        if new:
            try:
                rows = self._computed(list(new.values()))
            except Exception:
                self._rows.clear()
                raise
            self.computed += len(new)
            self._rows.update(zip(new, map(np.copy, rows), strict=True))
        found = np.empty((len(keys), self.dimension), dtype=np.float32)
        for position, key in enumerate(keys):
            found[position] = self._rows[key]
            self._rows.move_to_end(key)
        while len(self._rows) > self._texts_max:
            self._rows.popitem(last=False)
        return found

    def _computed(self, texts: Sequence[str]) -> npt.NDArray[np.float32]:
        """Returns the rows of `texts`, or an exception unless each row is a usable vector."""
        rows = np.asarray(self._model.encode(texts), dtype=np.float32)
        if rows.shape != (len(texts), self.dimension):
            raise ValueError(
                f"the model gave {rows.shape} for {len(texts)} texts of dimension {self.dimension}"
            )
        norms = np.linalg.norm(rows, axis=1)
        if not (np.isfinite(norms) & (norms > 0)).all():
            raise ValueError("the model gave a vector that is zero or not finite")
        return rows
