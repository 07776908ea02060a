"""Loads embedding models: in ONNX Runtime where they can be exported, else in torch."""

from __future__ import annotations

import logging
import os
from pathlib import Path

from carpool.disk.manifest import Manifest
from carpool.embedding.cached import CachedEmbedder
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
    """Opens the export beside the weights or in the user's cache; makes it there if need be."""
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
