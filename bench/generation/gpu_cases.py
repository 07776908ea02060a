"""The cases of `carpool bench gpu-memory`: GPUs, models, requests and searchers. All are stated."""

from __future__ import annotations

import msgspec

from carpool.gpu import Gpu


class LlmShape(msgspec.Struct, frozen=True, kw_only=True):
    """A model in numbers of 2 bytes, as its config.json says."""

    name: str
    weight_count: int
    kv_bytes_a_token: int

    @property
    def weights_bytes(self) -> int:
        """Bytes of all weights."""
        return 2 * self.weight_count


class RequestMix(msgspec.Struct, frozen=True, kw_only=True):
    """Prompts and answers. `passages` of at most `passage_chars`; answers have a mean length."""

    name: str
    passages: int
    passage_chars: int
    answer_tokens: int


class SearcherShape(msgspec.Struct, frozen=True, kw_only=True):
    """An index of `rows`, and the threads that search it."""

    name: str
    rows: int
    threads: int


# What they read and compute is some 0.8 and 0.6 of what data sheets promise.
GPU_80 = Gpu(name="80 GiB", total_bytes=80 << 30, bytes_per_s=2.7e12, flops_per_s=6e14)
GPU_24 = Gpu(name="24 GiB", total_bytes=24 << 30, bytes_per_s=4.8e11, flops_per_s=7.5e13)
SMOLLM2_2B = LlmShape(name="SmolLM2 1.7B", weight_count=1_711_376_384, kv_bytes_a_token=196_608)
LLAMA_8B = LlmShape(name="Llama 3.1 8B", weight_count=8_030_261_248, kv_bytes_a_token=131_072)
QWEN_14B = LlmShape(name="Qwen2.5 14B", weight_count=14_770_033_664, kv_bytes_a_token=196_608)

SERVERS = (
    (GPU_80, SMOLLM2_2B),
    (GPU_80, LLAMA_8B),
    (GPU_80, QWEN_14B),
    (GPU_24, SMOLLM2_2B),
)
MIXES = (
    RequestMix(name="short", passages=1, passage_chars=600, answer_tokens=48),
    RequestMix(name="usual", passages=3, passage_chars=600, answer_tokens=128),
    RequestMix(name="long", passages=10, passage_chars=2_000, answer_tokens=256),
)
SEARCHERS = (
    SearcherShape(name="5.4M rows, 2 threads", rows=5_400_000, threads=2),
    SearcherShape(name="20M rows, 2 threads", rows=20_000_000, threads=2),
    SearcherShape(name="100M rows, 16 threads", rows=100_000_000, threads=16),
)
