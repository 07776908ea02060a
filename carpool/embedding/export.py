"""Exports a model for ONNX Runtime, in a process of its own: that of a service loads no torch."""

from __future__ import annotations

import io
import subprocess
import sys
import tempfile
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np

from carpool.embedding.files import model_fingerprint, prompt_of
from carpool.embedding.settings import EmbeddingSettings
from carpool.embedding.torch_embedder import TorchEmbedder, load_model
from carpool.errors import ConfigError

VERSION = 1
"""Of what `export` writes: a file of another version is not read."""
OPSET = 17
TIMEOUT_S = 600
COSINE_MIN = 0.9999
"""Between the vectors of torch and of the export. Rounding alone leaves 0.999999."""
TEXTS = (
    "Which queries should share a trip?",
    "UPPER and lower Case",
    "Überschall, 東京, нет, naïve 🚀\n",
    "The Times is a British newspaper. " * 8,
    "word " * 5000,
)
"""Compared after an export, in one batch and alone: the last is too long for most models."""


def export_name(fingerprint: str) -> str:
    """Returns the name of the file of a model."""
    return f"carpool-{fingerprint}-{VERSION}.onnx"


def export_in_child(folder: Path, out: Path) -> None:
    """Runs `export` in another process. Blocks for some ten seconds.

    Raises `ConfigError` with the reason where the model cannot be exported.
    """
    command = [sys.executable, "-P", "-m", __package__, str(folder), str(out)]
    try:
        done = subprocess.run(command, capture_output=True, timeout=TIMEOUT_S, check=False)
    except subprocess.TimeoutExpired as error:
        raise ConfigError(f"the export took longer than {TIMEOUT_S} s") from error
    if done.returncode:
        said = done.stderr.decode(errors="replace").strip().splitlines()
        raise ConfigError(said[-1] if said else f"the export ended with {done.returncode}")


def export(folder: Path, out: Path) -> None:
    """Writes the model of `folder` to a file in `out` once it gives the vectors of torch. Blocks.

    Raises `ConfigError` where it gives others, and what torch, ONNX and the disk raise.
    """
    from carpool.embedding.onnx_embedder import OnnxEmbedder

    model = load_model(folder, EmbeddingSettings())
    fingerprint = model_fingerprint(folder)
    content = _exported(model)
    prompts = dict.fromkeys(prompt_of(folder, are_passages=each) for each in (False, True))
    for batch_size, prompt in product((1, len(TEXTS)), prompts):
        same: Any = {"fingerprint": fingerprint, "prompt": prompt, "batch_size": batch_size}
        exact = TorchEmbedder(model, **same).encode(TEXTS)
        found = OnnxEmbedder(content, **same).encode(TEXTS)
        cosine = float(np.sum(exact * found, axis=1).min())
        if not cosine >= COSINE_MIN:
            raise ConfigError(f"its export gives other vectors than torch (cosine {cosine:.4f})")
    out.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=out) as temporary:
        file = Path(temporary) / "model.onnx"
        file.write_bytes(content)
        file.replace(out / export_name(fingerprint))


def _exported(model: Any) -> bytes:
    """The graph from token ids to a vector, with the tokenizer as it is after a call."""
    import onnx
    import torch

    features = model.preprocess(list(TEXTS))
    names = [name for name, value in features.items() if isinstance(value, torch.Tensor)]
    whole, graph = torch.nn.Module(), io.BytesIO()
    whole.model = model
    whole.forward = lambda *inputs: model(dict(zip(names, inputs, strict=True)))[
        "sentence_embedding"
    ]
    torch.onnx.export(
        whole.eval(),
        tuple(features[name] for name in names),
        graph,
        dynamo=False,
        opset_version=OPSET,
        input_names=names,
        output_names=["vector"],
        dynamic_axes={name: {0: "texts", 1: "tokens"} for name in names} | {"vector": {0: "texts"}},
    )
    made = onnx.load_from_string(graph.getvalue())
    about = {
        "tokenizer": model.tokenizer.backend_tokenizer.to_str(),
        "dimension": str(model.get_embedding_dimension()),
    }
    onnx.helper.set_model_props(made, about)
    return bytes(made.SerializeToString())
