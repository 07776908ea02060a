"""Loads embedding models: in ONNX Runtime where they can be exported, else in torch."""

from __future__ import annotations

import logging
import os
from pathlib import Path

from carpool.embedding.embedder import Embedder
from carpool.embedding.export import export_in_child, export_name
from carpool.embedding.files import find_model, model_fingerprint, verify_weights
from carpool.embedding.hashing import HashingEmbedder
from carpool.embedding.settings import HASHING_PATTERN, EmbeddingSettings
from carpool.embedding.torch_embedder import TorchEmbedder, load_model

log = logging.getLogger(__name__)  # not structlog: commands do not set it up


def load_embedder(settings: EmbeddingSettings) -> Embedder:
    """Returns the embedder of `settings`, ready to use. Blocks for seconds for a real model.

    The first load of a model exports it. Raises `ConfigError` where the model is missing, is not
    the one that its name says, or cannot be loaded by sentence-transformers.
    """
    if match := HASHING_PATTERN.fullmatch(settings.model):
        return HashingEmbedder(int(match[1]))
    folder = find_model(settings)
    verify_weights(settings, folder)
    fingerprint = model_fingerprint(folder)
    try:
        return _open_export(folder, settings, fingerprint)
    except Exception as error:  # every reason has the same remedy
        model = load_model(folder, settings)
        log.warning(
            f"{folder} is embedded by torch, which takes more time and memory: ONNX Runtime cannot "
            f"({error})"
        )
    return TorchEmbedder(model, fingerprint=fingerprint)


def fingerprint_of(settings: EmbeddingSettings) -> str:
    """Returns the fingerprint of the model of `settings` without loading it. Blocks."""
    if match := HASHING_PATTERN.fullmatch(settings.model):
        return HashingEmbedder(int(match[1])).fingerprint
    return model_fingerprint(find_model(settings))


def _open_export(folder: Path, settings: EmbeddingSettings, fingerprint: str) -> Embedder:
    """Opens the export beside the weights or in the user's cache; makes it there if need be."""
    from carpool.embedding.onnx_embedder import OnnxEmbedder

    cache = Path(os.environ.get("XDG_CACHE_HOME") or "~/.cache").expanduser() / "carpool"
    name = export_name(fingerprint)
    for place in (folder / "onnx", cache):
        if (place / name).is_file():
            try:
                return OnnxEmbedder(place / name, fingerprint=fingerprint, threads=settings.threads)
            except Exception as error:
                log.warning(f"{place / name} is damaged ({error}): the model is exported again")
    export_in_child(folder, cache)
    return OnnxEmbedder(cache / name, fingerprint=fingerprint, threads=settings.threads)
