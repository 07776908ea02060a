"""`carpool index gpu-split`: how vLLM and a hot shard share one GPU, from measured rates."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path
from typing import Annotated

import msgspec
import typer

from carpool.errors import ConfigError
from carpool.vllm import GPU_MEMORY_OPTION
from cli.console import output, print_json
from cli.options import JsonOption

KEPT_BYTES = 1 << 30
"""The searcher's CUDA context, and gaps in memory: an assumption."""


class RatesFile(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Measured points, [bytes, questions a second], by rising bytes; see `choose_gpu_split`."""

    answers: tuple[tuple[int, float], ...]
    searches: tuple[tuple[int, float], ...]


def gpu_split(
    rates: Annotated[Path, typer.Argument(metavar="RATES.json", help="Measured rates.")],
    gpu_bytes: Annotated[
        int, typer.Option("--gpu-bytes", min=1, help="Memory of the GPU.", metavar="BYTES")
    ],
    utilization: Annotated[
        float,
        typer.Option(min=0.01, max=1, help="vLLM's share of it without a shard, as measured."),
    ] = 0.92,
    as_json: JsonOption = False,
) -> None:
    """Choose how vLLM and a hot shard share one GPU: the most questions a second.

    The file has "answers", [[bytes of the KV cache, answers a second], ...], the last point without
    a shard; and "searches", [[bytes of the shard, searches a second], ...], the first point without
    a shard. Of splits that differ by less than 1 % the one with the smallest shard is chosen. The
    searcher itself takes 1 GiB of the GPU. The last line is for docker-compose.gpu-shard.yml.

    Example: carpool index gpu-split rates.json --gpu-bytes 85899345920
    """
    from searcher.plan.gpu_split import choose_gpu_split

    try:
        given = msgspec.json.decode(rates.read_bytes(), type=RatesFile)
    except OSError as error:
        raise ConfigError(f"cannot read {rates}: {error.strerror}") from error
    except (msgspec.DecodeError, msgspec.ValidationError) as error:
        raise ConfigError(f"{rates} is no file of rates: {error}") from error
    split = choose_gpu_split(given.answers, given.searches, KEPT_BYTES)
    if split.shard_bytes:
        utilization -= (split.shard_bytes + KEPT_BYTES) / gpu_bytes
    if utilization <= 0:
        raise ConfigError(
            f"a shard of {split.shard_bytes:,} bytes leaves vLLM nothing of {gpu_bytes:,}: are "
            "--gpu-bytes, --utilization and the points of one GPU?"
        )
    if as_json:
        print_json(asdict(split) | {"utilization": utilization})
        return
    console = output()
    console.print(
        f"A KV cache of {split.kv_bytes:,} bytes answers {split.answers_per_s:,.1f} questions a "
        f"second, and a shard of {split.shard_bytes:,} bytes searches "
        f"{split.searches_per_s:,.1f}. Without a shard, search does {given.searches[0][1]:,.1f}.",
        markup=False,
    )
    if not split.shard_bytes:
        console.print("Set searcher.shard_bytes to 0.", markup=False)
        return
    console.print(
        f"Set {GPU_MEMORY_OPTION}={utilization:.3f} in vllm.extra_args, and "
        f"searcher.shard_bytes to {split.shard_bytes}:",
        f"CARPOOL_GPU_MEMORY_UTILIZATION={utilization:.3f} "
        f"CARPOOL_SEARCHER_SHARD_BYTES={split.shard_bytes}",
        sep="\n",
        markup=False,
    )
