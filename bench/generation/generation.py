"""`carpool bench generation`: what do orders, trees and servers cost in prompt tokens?"""

from __future__ import annotations

import queue
from collections.abc import Iterator, Sequence
from concurrent.futures import Future, ProcessPoolExecutor
from contextlib import ExitStack
from functools import partial
from multiprocessing import Manager, get_context
from pathlib import Path
from typing import Any, TypeAlias

import msgspec

from bench.core.command import reported
from bench.core.machine import data_file
from bench.core.progress import Tell, progress_bars
from bench.core.report import RunStart, finish
from bench.data.evaluation import CORPUS, TRAFFIC, EvaluationData, find_data, read_passages
from bench.generation.block_simulator import CacheSize
from bench.generation.cli import REAL_PARTS, GenerationOptions
from bench.generation.generation_tables import print_generation
from bench.generation.killed_server import KilledServer, kill_one_of_two
from bench.generation.llm_server import llm_server
from bench.generation.order_rows import (
    CASES,
    PROMISED_CASES,
    SHARE_MIN,
    OrderBench,
    OrderRow,
)
from bench.generation.real_rows import (
    OFF_MAX,
    REAL_REPLICAS,
    REPLICAS_OFF_MAX,
    RealRow,
    cache_size,
    real_replicas_row,
    real_rows,
)
from bench.generation.replica_rows import (
    REPLICA_CASES,
    REPLICA_LOAD_MAX,
    REPLICA_SHARE_MIN,
    SERVERS,
    ReplicaRow,
    replica_rows,
)
from bench.generation.simulation import Renderer
from bench.generation.streams import (
    STREAM_NAMES,
    Ask,
    PromptIds,
    StreamName,
    StreamShape,
    make_stream,
    natural_stream,
    shape_of,
)
from bench.generation.tier_rows import TierRow, tier_rows, tree_prompts
from carpool.vllm import VllmSettings
from generator.prompts import load_templates
from generator.settings import GeneratorSettings

ASKS = 3700
"""Prompts of a stream."""
REAL_PROMPTS = 300
"""Prompts of each run of vLLM."""
KV_TOKENS = 23_296
"""Tokens in the server's KV cache: those of a vLLM with 1 GiB for SmolLM2-135M."""
BLOCK_TOKENS = 32
TEMPLATE = "cited"
LONGER_TEMPLATE = "cited_json"
"""The prompts for which the shares are promised: their head is longer than that of `cited`."""
REAL_STREAMS: tuple[StreamName, ...] = ("natural", "zipf")
REPLICA_STREAM: StreamName = "zipf"
SimulatedRow: TypeAlias = OrderRow | TierRow | ReplicaRow
_TOLD_S = 0.5


class GenerationResult(msgspec.Struct, frozen=True, kw_only=True):
    """The rows of a run. Those of a part that was not asked for are missing."""

    shapes: dict[StreamName, StreamShape] = {}
    orders: tuple[OrderRow, ...] = ()
    tiers: tuple[TierRow, ...] = ()
    replicas: tuple[ReplicaRow, ...] = ()
    real: tuple[RealRow, ...] = ()
    killed: KilledServer | None = None


def run(options: GenerationOptions) -> bool:
    """Runs the benchmark; returns whether every promise was kept. Blocks, for minutes.

    Raises `CarpoolError`.
    """
    start = RunStart.now()
    data = find_data(options.data)
    model_dir = Path(options.llm or VllmSettings().model_dir)
    result = GenerationResult()
    with progress_bars() as tell:
        if _parts(options) - set(REAL_PARTS):
            result = _simulate(options, data, model_dir, tell)
        if _parts(options) & set(REAL_PARTS):
            result = _ask_vllm(options, data, model_dir, result, tell)
    report = start.report(
        "generation",
        settings=reported(msgspec.structs.replace(options, llm=model_dir.name)),
        promises=promises_of(result),
        results=result,
        data=tuple(
            data_file(path)
            for path in (
                data.corpus_path,
                data.questions_path(TRAFFIC),
                data.vectors_path(CORPUS),
                data.vectors_path(TRAFFIC),
            )
        ),
    )
    return finish(report, options.json_file, partial(print_generation, result=result))


def promises_of(result: GenerationResult) -> dict[str, bool]:
    """Returns each promise and whether it was kept."""
    promises = {}
    for stream, share_min in SHARE_MIN.items():
        shares = [
            row.hit_share
            for row in result.orders
            if row.stream == stream
            and row.template == LONGER_TEMPLATE
            and row.order == "cached_prefix"
            and row.overtaken_max is None
        ]
        if shares:
            name = (
                f"{stream}: a backlog of 1,024 without a bound of overtaking hits {share_min:.0%} "
                f"of the tokens of {LONGER_TEMPLATE} prompts or more"
            )
            promises[name] = shares[0] >= share_min
    if result.replicas:
        routed = [row for row in result.replicas if row.order == "cached_prefix"]
        promises[
            f"{SERVERS} servers, zipf: {REPLICA_SHARE_MIN:.0%} or more, and the busiest one has at "
            f"most {REPLICA_LOAD_MAX} of the mean"
        ] = all(
            row.hit_share >= REPLICA_SHARE_MIN and row.requests_of_mean <= REPLICA_LOAD_MAX
            for row in routed
            if not row.is_killed
        )
        promises["after a kill all are answered, and no block is credited that is not there"] = all(
            not row.miscredited_blocks and not row.unanswered for row in result.replicas
        )
    if one := [row for row in result.real if row.servers == 1]:
        promises[f"the simulated hit share is within {OFF_MAX} of vLLM's in every run"] = all(
            abs(row.off) <= OFF_MAX for row in one
        )
    if several := [row for row in result.real if row.servers > 1]:
        promises[f"of several servers the simulated hit share is within {REPLICAS_OFF_MAX}"] = all(
            abs(row.off) <= REPLICAS_OFF_MAX for row in several
        )
    if (killed := result.killed) is not None:
        promises[
            "after a kill of a real vLLM all are answered once, and none is credited in vain"
        ] = (
            killed.answered == killed.prompts
            and not killed.answered_twice
            and not killed.blocks_while_down
            and not killed.credited_in_vain
        )
        promises[f"the simulated hit share of each is within {REPLICAS_OFF_MAX} then"] = all(
            abs(part.simulated_share - part.reported_share) <= REPLICAS_OFF_MAX
            for part in killed.parts
        )
    return promises


def _simulate(
    options: GenerationOptions, data: EvaluationData, model_dir: Path, tell: Tell
) -> GenerationResult:
    """Simulates each stream in a process of its own."""
    with Manager() as manager, ProcessPoolExecutor(mp_context=get_context("spawn")) as pool:
        told: Any = manager.Queue()
        results: list[Future[GenerationResult]] = [
            pool.submit(_simulate_stream, options, data, model_dir, stream, told)
            for stream in _streams(options)
        ]
        while not all(result.done() for result in results) or not told.empty():
            try:
                tell(*told.get(timeout=_TOLD_S))
            except queue.Empty:
                continue
        found = [result.result() for result in results]
    return GenerationResult(
        shapes={name: shape for each in found for name, shape in each.shapes.items()},
        orders=tuple(row for each in found for row in each.orders),
        tiers=tuple(row for each in found for row in each.tiers),
        replicas=tuple(row for each in found for row in each.replicas),
    )


def _simulate_stream(
    options: GenerationOptions,
    data: EvaluationData,
    model_dir: Path,
    stream: StreamName,
    told: Any,
) -> GenerationResult:
    natural = natural_stream(data, passages=options.passages)
    asks = make_stream(stream, natural, asks=ASKS, seed=options.seed)
    making: list[tuple[str, Iterator[SimulatedRow], int]] = []
    ids, renderer = _renderer(options, data, model_dir, TEMPLATE)
    if "orders" in _parts(options):
        size = _size(options)
        bench = OrderBench(stream, asks, size, renderer, template=TEMPLATE)
        making.append((f"orders, {stream}", bench.rows(CASES), len(CASES)))
        making.append((f"baselines, {stream}", bench.compared(), 7))
        if stream in SHARE_MIN and TEMPLATE != LONGER_TEMPLATE:
            _, longer = _renderer(options, data, model_dir, LONGER_TEMPLATE)
            bench = OrderBench(stream, asks, size, longer, template=LONGER_TEMPLATE)
            rows = bench.rows(PROMISED_CASES)
            making.append((f"longer prompts, {stream}", rows, len(PROMISED_CASES)))
    if "tiers" in _parts(options):
        rows_of_tiers = tier_rows(stream, tree_prompts(asks, ids, renderer), KV_TOKENS)
        making.append((f"tree of passages, {stream}", rows_of_tiers, 15))
    if "replicas" in _parts(options) and stream == REPLICA_STREAM:
        replicas = replica_rows(stream, asks, _size(options), renderer)
        making.append((f"{SERVERS} servers, {stream}", replicas, len(REPLICA_CASES)))
    made: list[SimulatedRow] = []
    for step, steps, total in making:
        for done, row in enumerate(steps, start=1):
            made.append(row)
            told.put((step, done, total))
    return GenerationResult(
        shapes={stream: shape_of(asks)},
        orders=tuple(row for row in made if isinstance(row, OrderRow)),
        tiers=tuple(row for row in made if isinstance(row, TierRow)),
        replicas=tuple(row for row in made if isinstance(row, ReplicaRow)),
    )


def _ask_vllm(
    options: GenerationOptions,
    data: EvaluationData,
    model_dir: Path,
    simulated: GenerationResult,
    tell: Tell,
) -> GenerationResult:
    """Returns the simulated result with the rows of real servers."""
    natural = natural_stream(data, passages=options.passages)
    streams: dict[StreamName, Sequence[Ask]] = {
        name: make_stream(name, natural, asks=REAL_PROMPTS, seed=options.seed)
        for name in REAL_STREAMS
        if name in _streams(options)
    }
    parts, folders, arguments = _parts(options), _vllm_folders(options), _vllm_args(options)
    rows: list[RealRow] = []
    if parts & {"real", "real-replicas"}:
        with ExitStack() as stack:
            servers = [
                stack.enter_context(llm_server(None, None, str(model_dir), folder, arguments))
                for folder in folders
            ]
            size = cache_size(servers[0], concurrency=_size(options).concurrency)
            _, renderer = _renderer(options, data, model_dir, TEMPLATE)
            if "real" in parts:
                rows += real_rows(streams, servers[0], size, renderer, tell)
            if "real-replicas" in parts and REPLICA_STREAM in streams:
                asks = streams[REPLICA_STREAM]
                rows.append(real_replicas_row(REPLICA_STREAM, asks, servers, size, renderer, tell))
    killed = None
    if "real-kill" in parts and REPLICA_STREAM in streams:
        killed = kill_one_of_two(
            streams[REPLICA_STREAM],
            read_passages(data.corpus_path),
            model_dir=model_dir,
            folders=folders,
            vllm_args=arguments,
            backlog=REAL_REPLICAS.backlog,
            tell=tell,
        )
    return msgspec.structs.replace(simulated, real=tuple(rows), killed=killed)


def _vllm_args(options: GenerationOptions) -> tuple[str, ...]:
    blocks = str(KV_TOKENS // BLOCK_TOKENS)
    arguments = ["--num-gpu-blocks-override", blocks]
    if options.layers is not None:
        arguments += ["--load-format", "dummy"]
        arguments += ["--hf-overrides", f'{{"num_hidden_layers": {options.layers}}}']
    return tuple(arguments)


def _vllm_folders(options: GenerationOptions) -> list[Path]:
    """Returns a folder for each vLLM of the run."""
    count = (
        1 if _parts(options).isdisjoint(("real-replicas", "real-kill")) else REAL_REPLICAS.servers
    )
    return [options.work / "generation" / f"vllm-{number}" for number in range(1, count + 1)]


def _parts(options: GenerationOptions) -> set[str]:
    return set(options.parts.split(","))


def _streams(options: GenerationOptions) -> list[StreamName]:
    return [name for name in STREAM_NAMES if name in options.streams.split(",")]


def _size(options: GenerationOptions) -> CacheSize:
    """Returns the memory of the simulated server. vLLM keeps one block for itself."""
    blocks = KV_TOKENS // BLOCK_TOKENS
    return CacheSize(blocks=blocks - 1, block_tokens=BLOCK_TOKENS)


def _renderer(
    options: GenerationOptions, data: EvaluationData, model_dir: Path, template: str
) -> tuple[PromptIds, Renderer]:
    ids = PromptIds(data, model_dir, load_templates(GeneratorSettings())[template])
    return ids, Renderer(ids, block_tokens=BLOCK_TOKENS)
