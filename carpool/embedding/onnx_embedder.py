"""An exported model in ONNX Runtime: without torch, in less time and memory."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import numpy.typing as npt

os.environ["ORT_DISABLE_TELEMETRY"] = "1"  # its import would make an id of the machine
import onnxruntime
from tokenizers import Tokenizer

from carpool.embedding.embedder import BATCH_TEXTS, batches

FIELDS = {"input_ids": "ids", "attention_mask": "attention_mask", "token_type_ids": "type_ids"}
"""The inputs that a model may have, and what the tokenizer calls them."""


class OnnxEmbedder:
    """A model as [export.py](export.py) writes it: graph and tokenizer in one file."""

    def __init__(
        self,
        model: Path | bytes,
        *,
        fingerprint: str,
        prompt: str = "",
        threads: int = 0,
        batch_size: int = BATCH_TEXTS,
    ) -> None:
        """`model`: the file or its content. Blocks. Raises what ONNX Runtime raises."""
        options = onnxruntime.SessionOptions()
        options.intra_op_num_threads = threads or len(os.sched_getaffinity(0))
        # Threads that spin between two questions take the cores of other services.
        options.add_session_config_entry("session.intra_op.allow_spinning", "0")
        self._session = onnxruntime.InferenceSession(
            model, options, providers=["CPUExecutionProvider"]
        )
        self._inputs = [each.name for each in self._session.get_inputs()]
        about = self._session.get_modelmeta().custom_metadata_map
        self._prompt = prompt
        self._tokenizer = Tokenizer.from_str(about["tokenizer"])
        self._batch_size = batch_size
        self.fingerprint = fingerprint
        self.dimension = int(about["dimension"])

    def encode(self, texts: Sequence[str]) -> npt.NDArray[np.float32]:
        """Returns (len(texts), dimension) float32, rows L2-normalised. Blocks; one thread."""
        vectors = np.zeros((len(texts), self.dimension), dtype=np.float32)
        for rows in batches(texts, self._batch_size):
            read = self._tokenizer.encode_batch([self._prompt + texts[row] for row in rows])
            inputs = {
                name: np.array([getattr(each, FIELDS[name]) for each in read], dtype=np.int64)
                for name in self._inputs
            }
            vectors[rows] = self._session.run(None, inputs)[0][:, : self.dimension]  # truncate_dim
        vectors /= np.maximum(np.linalg.norm(vectors, axis=1, keepdims=True), 1e-12)
        return vectors
