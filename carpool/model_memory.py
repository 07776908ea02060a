"""What a language model takes of a GPU's memory, from the files of its folder."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import msgspec
from msgspec import Meta

from carpool.errors import ConfigError

NUMBER_BYTES = {
    "float32": 4,
    "float": 4,
    "float16": 2,
    "half": 2,
    "bfloat16": 2,
    "fp8": 1,
    "fp8_e4m3": 1,
    "fp8_e5m2": 1,
}
"""Bytes of a number by its type, as vLLM and config.json name them."""

Count = Annotated[int, Meta(ge=1)]


class ModelConfig(msgspec.Struct, frozen=True, kw_only=True):
    """The part of a model's config.json that says how large its KV cache is.

    `kv_lora_rank`, `qk_rope_head_dim`: of models that cache a compressed vector instead of keys and
    values (MLA). `torch_dtype`: an older name of `dtype`.
    """

    num_hidden_layers: Count
    num_attention_heads: Count
    hidden_size: Count
    num_key_value_heads: Count | None = None
    head_dim: Count | None = None
    kv_lora_rank: Count | None = None
    qk_rope_head_dim: Annotated[int, Meta(ge=0)] = 0
    dtype: str | None = None
    torch_dtype: str | None = None
    quantization_config: dict[str, Any] | None = None

    @property
    def stored_dtype(self) -> str:
        """The type of the stored weights."""
        return self.dtype or self.torch_dtype or "float32"

    @property
    def kv_numbers_a_token(self) -> int:
        """Numbers of the KV cache for a token.

        Layers with a sliding window count as the others: they take less for long prompts only.
        """
        if self.kv_lora_rank is not None:
            return self.num_hidden_layers * (self.kv_lora_rank + self.qk_rope_head_dim)
        heads = self.num_key_value_heads or self.num_attention_heads
        head_dim = self.head_dim or self.hidden_size // self.num_attention_heads
        return 2 * self.num_hidden_layers * heads * head_dim


class ModelMemory(msgspec.Struct, frozen=True, kw_only=True):
    """Bytes of the weights, how many there are, and bytes of the KV cache for a token."""

    weights_bytes: int
    weight_count: int
    kv_bytes_a_token: int


def read_model_memory(folder: Path, *, dtype: str = "auto", kv_dtype: str = "auto") -> ModelMemory:
    """Returns what the model in `folder` takes when it is served with these types of numbers.

    `auto`: as vLLM chooses it. Raises `ConfigError` where the files do not say.
    """
    config = read_config(folder)
    stored_bytes = _number_bytes(config.stored_dtype)
    served = dtype
    if dtype == "auto":  # vLLM serves float32 models in 16 bits
        served = "float16" if stored_bytes == 4 else config.stored_dtype
    files_bytes = sum(path.stat().st_size for path in folder.glob("*.safetensors"))
    if files_bytes == 0:
        raise ConfigError(f"{folder} has no weights: no file in it ends with .safetensors")
    served_bytes = _number_bytes(served)
    # Weights that are quantised stay as they are in the files.
    weight_bytes = stored_bytes if config.quantization_config else served_bytes
    return ModelMemory(
        weights_bytes=files_bytes * weight_bytes // stored_bytes,
        weight_count=files_bytes // stored_bytes,
        kv_bytes_a_token=config.kv_numbers_a_token
        * (served_bytes if kv_dtype == "auto" else _number_bytes(kv_dtype)),
    )


def read_config(folder: Path) -> ModelConfig:
    """Returns what config.json says; of a model for text and images, of its text model.

    Raises `ConfigError` where it does not say what is needed.
    """
    path = folder / "config.json"
    try:
        found = msgspec.json.decode(path.read_bytes(), type=dict[str, Any])
        return msgspec.convert(found.get("text_config", found), ModelConfig)
    except OSError as error:
        raise ConfigError(f"cannot read {path}: {error.strerror}") from error
    except (msgspec.DecodeError, msgspec.ValidationError) as error:
        raise ConfigError(
            f"{path} does not say how large the KV cache of a token is: {error}"
        ) from error


def _number_bytes(dtype: str) -> int:
    if dtype not in NUMBER_BYTES:
        raise ConfigError(
            f"it is not known how many bytes a number of type {dtype!r} has; known: "
            f"{', '.join(NUMBER_BYTES)}"
        )
    return NUMBER_BYTES[dtype]
