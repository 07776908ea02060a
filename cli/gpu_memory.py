"""How `carpool up` shares one GPU between vLLM and the hot shard: what the choice is made from.

The choice itself is `searcher/plan/gpu_memory.py`.
"""

from __future__ import annotations

import math
from pathlib import Path

import msgspec

from carpool.disk.manifest import read_manifest
from carpool.errors import ConfigError
from carpool.gpu import Gpu
from carpool.model_memory import ModelMemory, read_model_memory
from carpool.vllm import GPU_MEMORY_OPTION, last_argument, vllm_command
from cli.all_settings import CarpoolSettings
from searcher.plan.gpu_blocks import BLOCK_ROWS, BOOKS_BYTES
from searcher.plan.gpu_memory import (
    KEPT_BYTES,
    OVERHEAD_BYTES,
    GpuMemory,
    GpuSplit,
    MeasuredRates,
    Rates,
    choose_gpu_split,
    generation_model,
    gib,
    split_for_shard,
    split_for_utilization,
)

CHARS_A_TOKEN = 4
FRAME_TOKENS = 150
"""Of a prompt beside its passages: an assumption."""
NUMBER_BYTES = 2
"""Of a vector in the shard: float16."""
SCAN_BYTES = 192 << 20
"""At most what a shard has beside its blocks."""


class GpuRates(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The file of `up.gpu_rates`: measured points, [bytes, questions a second], by rising bytes.

    `retrieval`: searches by bytes of the shard; the first point is without a shard. `generation`:
    answers by bytes of the KV cache; empty: a model of the LLM's steps. `gpu_bytes_per_s`,
    `gpu_flops_per_s`: of this model; 0: measured on the GPU.
    """

    retrieval: tuple[tuple[int, float], ...]
    generation: tuple[tuple[int, float], ...] = ()
    gpu_bytes_per_s: float = 0.0
    gpu_flops_per_s: float = 0.0


def read_rates(path: Path) -> GpuRates:
    """Returns the rates of a file. Raises `ConfigError` where it has none."""
    try:
        found = msgspec.json.decode(path.read_bytes(), type=GpuRates)
    except OSError as error:
        raise ConfigError(f"up.gpu_rates: cannot read {path}: {error.strerror}") from error
    except (msgspec.DecodeError, msgspec.ValidationError) as error:
        raise ConfigError(f"up.gpu_rates: {path} is no file of rates: {error}") from error
    if not found.retrieval or found.retrieval[0][0] != 0:
        raise ConfigError(
            f"up.gpu_rates: the first point of retrieval in {path} must be that without a shard, "
            "[0, searches a second]"
        )
    return found


def split_gpu(settings: CarpoolSettings, gpu: Gpu) -> GpuSplit:
    """Returns what vLLM and the shard get of the GPU. Raises `ConfigError` that says what to do.

    vLLM's own option wins, then `searcher.shard_bytes_max`, then the rates of both (Eq. 2).
    """
    options = vllm_command(settings.vllm, 0)
    model = read_model_memory(
        Path(settings.vllm.model_dir),
        dtype=last_argument(options, "--dtype") or "auto",
        kv_dtype=last_argument(options, "--kv-cache-dtype") or "auto",
    )
    tokens_max = _tokens(last_argument(options, "--max-model-len") or "0")
    memory = GpuMemory(
        total_bytes=gpu.total_bytes,
        llm_fixed_bytes=model.weights_bytes + OVERHEAD_BYTES,
        kept_bytes=KEPT_BYTES,
        kv_bytes_min=tokens_max * model.kv_bytes_a_token,
    )
    wanted_bytes = settings.searcher.shard_bytes_max
    told = last_argument(options, GPU_MEMORY_OPTION)
    if told is not None:
        return split_for_utilization(
            memory,
            _utilization(told),
            shard_bytes_max=wanted_bytes or index_shard_bytes(settings),
        )
    if wanted_bytes:
        return split_for_shard(memory, wanted_bytes)
    if not settings.up.gpu_rates:
        raise ConfigError(
            "searcher.shard=gpu beside vLLM on one GPU: nothing says how large the shard shall be. "
            "Set searcher.shard_bytes_max, or give the rates of both with up.gpu_rates"
        )
    rates = read_rates(Path(settings.up.gpu_rates))
    return choose_gpu_split(
        memory,
        _generation(settings, rates, gpu, model),
        MeasuredRates(rates.retrieval),
        shard_bytes_max=index_shard_bytes(settings),
        wanted_per_s=settings.searcher.shard_queries_per_s or math.inf,
    )


def index_shard_bytes(settings: CarpoolSettings) -> int:
    """Returns a shard that holds the whole index: blocks of rows, and memory for scans."""
    manifest = read_manifest(Path(settings.index.dir))
    blocks = manifest.row_count // BLOCK_ROWS + manifest.nlist  # one of a cluster is not full
    return blocks * (BLOCK_ROWS * manifest.dimension * NUMBER_BYTES + BOOKS_BYTES) + SCAN_BYTES


def split_text(split: GpuSplit) -> str:
    """Returns what was chosen and why."""
    if split.shard_bytes == 0:
        return f"The GPU has no shard, and vLLM takes its usual share: {split.reason}."
    return (
        f"The GPU has a shard of {gib(split.shard_bytes)}, and a KV cache of "
        f"{gib(split.kv_bytes)} ({GPU_MEMORY_OPTION}={split.utilization:g}): {split.reason}."
    )


def stated_gpu(total_bytes: int) -> Gpu:
    """Returns a GPU of which only the memory is known."""
    return Gpu(name="stated", total_bytes=total_bytes, bytes_per_s=0.0, flops_per_s=0.0)


def compose_lines(split: GpuSplit) -> tuple[str, ...]:
    """Returns the variables that tell the compose stack of a split; none where there is no shard:
    it needs no more than docker-compose.yml then.
    """
    if split.shard_bytes == 0:
        return ()
    return (
        f"CARPOOL_GPU_MEMORY_UTILIZATION={split.utilization:g}",
        f"CARPOOL_SEARCHER_SHARD_BYTES_MAX={split.shard_bytes}",
    )


def _generation(settings: CarpoolSettings, rates: GpuRates, gpu: Gpu, model: ModelMemory) -> Rates:
    if rates.generation:
        return MeasuredRates(rates.generation)
    bytes_per_s = rates.gpu_bytes_per_s or gpu.bytes_per_s
    flops_per_s = rates.gpu_flops_per_s or gpu.flops_per_s
    if not bytes_per_s or not flops_per_s:
        raise ConfigError(
            f"{settings.up.gpu_rates} has no rates of the LLM, and there is no GPU to measure: add "
            "generation, or gpu_bytes_per_s and gpu_flops_per_s"
        )
    generator = settings.generator
    passages_chars = generator.passages_max * generator.passage_chars_max
    at_once = generator.concurrency or generator.intake_records_max // 2
    return generation_model(
        bytes_per_s=bytes_per_s,
        flops_per_s=flops_per_s,
        weights_bytes=model.weights_bytes,
        weight_count=model.weight_count,
        kv_bytes_a_token=model.kv_bytes_a_token,
        prompt_tokens=min(generator.prompt_chars_max, passages_chars) // CHARS_A_TOKEN
        + FRAME_TOKENS,
        answer_tokens=generator.max_tokens,
        sequences_max=min(at_once, settings.vllm.sequences_max),
    )


def _tokens(told: str) -> int:
    if not told.isdecimal():
        raise ConfigError(
            f"vllm.extra_args: --max-model-len {told!r} is no number of tokens, so the least KV "
            "cache is not known; write it in digits"
        )
    return int(told)


def _utilization(told: str) -> float:
    try:
        share = float(told)
    except ValueError:
        share = math.nan
    if not 0 < share <= 1:
        raise ConfigError(f"vllm.extra_args: {GPU_MEMORY_OPTION} {told!r} is no share of 0 to 1")
    return share
