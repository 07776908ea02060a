"""The options of `carpool bench paper ragcache`. Light to import."""

from __future__ import annotations

from typing import Annotated, Literal

import msgspec
import typer

from bench.core.options import DataOption, JsonOption, SeedOption


class RagCacheOptions(msgspec.Struct, frozen=True, kw_only=True):
    """RAGCache: which order of prompts saves most tokens (5.2)?

    Sends streams of real prompts through the generator's queue to a simulated vLLM, which evicts
    blocks by LRU: in the order of arrival, in RAGCache's order, in ours, and as if no block were
    computed twice (the oracle: memory without end, all prompts known). Streams: the questions as
    they come (natural), drawn by Zipf 1.0 (zipf), in the shape of RAGPulse's trace (ragpulse).
    Speculative pipelining (5.3) is a row of `carpool bench paper aquapipe speculation`.

    Ends with 1 when our order and a backlog of 1,024 find less than 14 % of the tokens of the
    natural stream in the cache, 65 % by Zipf, or 20 % in RAGPulse's shape.

    Example:  carpool bench paper ragcache orders --data DATA
    """

    figure: Annotated[Literal["orders"], typer.Argument(metavar="orders", show_default=False)]
    data: DataOption = None
    prompts: Annotated[int, typer.Option("--prompts", min=1, help="Prompts of each stream.")] = 3700
    llm: Annotated[
        str | None,
        typer.Option(
            "--llm",
            metavar="DIR",
            help="Folder of the chat model whose tokenizer makes the prompts. Default: "
            "vllm.model_dir.",
            show_default=False,
        ),
    ] = None
    seed: SeedOption = 0
    json_file: JsonOption = None
