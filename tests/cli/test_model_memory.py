"""What a model takes of a GPU: published numbers of real models, from their config.json."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import pytest

from carpool.errors import ConfigError
from carpool.model_memory import read_model_memory
from tests.conftest import DEFAULT_LLM_MODEL

SMOLLM2_135M = {
    "dtype": "bfloat16",
    "head_dim": 64,
    "hidden_size": 576,
    "num_attention_heads": 9,
    "num_hidden_layers": 30,
    "num_key_value_heads": 3,
}
LLAMA_3_1_8B = {
    "hidden_size": 4096,
    "num_attention_heads": 32,
    "num_hidden_layers": 32,
    "num_key_value_heads": 8,
    "torch_dtype": "bfloat16",
}
LLAMA_2_7B = {  # a key and a value for every head
    "hidden_size": 4096,
    "num_attention_heads": 32,
    "num_hidden_layers": 32,
    "torch_dtype": "float16",
}
GEMMA_3_4B = {  # a model for text and images; its heads are wider than its hidden size says
    "text_config": {
        "head_dim": 256,
        "hidden_size": 2560,
        "num_attention_heads": 8,
        "num_hidden_layers": 34,
        "num_key_value_heads": 4,
        "torch_dtype": "bfloat16",
    }
}
DEEPSEEK_V2_LITE = {
    "hidden_size": 2048,
    "kv_lora_rank": 512,
    "num_attention_heads": 16,
    "num_hidden_layers": 27,
    "num_key_value_heads": 16,
    "qk_rope_head_dim": 64,
    "torch_dtype": "bfloat16",
}


def model(folder: Path, config: dict[str, Any], weights_bytes: int = 4_000) -> Path:
    (folder / "config.json").write_text(json.dumps({"model_type": "any", **config}))
    with (folder / "model.safetensors").open("wb") as file:
        file.truncate(weights_bytes)
    return folder


@pytest.mark.parametrize(
    ("config", "dtype", "kv_dtype", "kv_bytes"),
    [
        (SMOLLM2_135M, "auto", "auto", 23_040),
        (SMOLLM2_135M, "float32", "auto", 46_080),
        (LLAMA_3_1_8B, "auto", "auto", 131_072),
        (LLAMA_3_1_8B, "auto", "fp8", 65_536),
        (LLAMA_2_7B, "auto", "auto", 524_288),
        (GEMMA_3_4B, "auto", "auto", 139_264),
        (DEEPSEEK_V2_LITE, "auto", "auto", 31_104),
    ],
)
def test_a_token_takes_the_known_bytes_of_the_kv_cache(
    config: dict[str, Any], dtype: str, kv_dtype: str, kv_bytes: int, tmp_path: Path
) -> None:
    found = read_model_memory(model(tmp_path, config), dtype=dtype, kv_dtype=kv_dtype)
    assert found.kv_bytes_a_token == kv_bytes


def test_a_kv_cache_of_a_gibibyte_has_the_tokens_that_vllm_says(tmp_path: Path) -> None:
    found = read_model_memory(model(tmp_path, SMOLLM2_135M), dtype="float32")
    block_bytes = 32 * found.kv_bytes_a_token
    assert (1 << 30) // block_bytes * 32 == 23_296  # as vLLM 0.32 logged it, with blocks of 32


@pytest.mark.parametrize(
    ("stored", "dtype", "weights_bytes"),
    [
        ({"dtype": "bfloat16"}, "auto", 4_000),
        ({"dtype": "bfloat16"}, "float32", 8_000),
        ({"dtype": "float32"}, "auto", 2_000),  # vLLM serves it in 16 bits
        ({}, "auto", 2_000),
        ({"dtype": "float16", "quantization_config": {"bits": 4}}, "float32", 4_000),
    ],
)
def test_weights_take_what_they_take_in_the_type_that_is_served(
    stored: dict[str, Any], dtype: str, weights_bytes: int, tmp_path: Path
) -> None:
    config = {name: it for name, it in SMOLLM2_135M.items() if name != "dtype"} | stored
    assert read_model_memory(model(tmp_path, config), dtype=dtype).weights_bytes == weights_bytes


def test_a_folder_that_does_not_say_is_refused_with_what_is_missing(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"cannot read .*config\.json"):
        read_model_memory(tmp_path)
    with pytest.raises(ConfigError, match="num_hidden_layers"):
        read_model_memory(model(tmp_path, {}))
    (tmp_path / "config.json").write_text("{")
    with pytest.raises(ConfigError, match="does not say"):
        read_model_memory(tmp_path)
    with pytest.raises(ConfigError, match="int3"):
        read_model_memory(model(tmp_path, SMOLLM2_135M), dtype="int3")
    (tmp_path / "model.safetensors").unlink()
    with pytest.raises(ConfigError, match="no weights"):
        read_model_memory(tmp_path)


@pytest.mark.vllm
def test_the_demos_model_has_135_million_weights() -> None:
    folder = Path(os.environ.get("CARPOOL_TEST_MODEL") or DEFAULT_LLM_MODEL)
    found = read_model_memory(folder)
    assert found.weight_count == pytest.approx(134.5e6, rel=0.01)
    assert (found.kv_bytes_a_token, found.weights_bytes) == (23_040, 2 * found.weight_count)
