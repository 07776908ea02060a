"""`carpool bench speculation`: every policy of speculation on the same searches."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Literal

import msgspec
import numpy as np
from rich.console import Console
from rich.table import Table
from threadpoolctl import threadpool_limits  # type: ignore[import-untyped]

from bench.core.command import reported
from bench.core.machine import data_file
from bench.core.progress import Tell, progress_bars
from bench.core.report import RunStart, finish
from bench.data.evaluation import (
    CORPUS,
    EvaluationData,
    find_data,
    read_passages,
    read_vectors,
)
from bench.data.trace import cluster_quickly
from bench.generation.cli import SpeculationOptions
from bench.generation.progressive import (
    ProgressiveSearch,
    ScanOrder,
    SearchedCorpus,
    Searches,
    final_passages,
)
from bench.generation.speculation import (
    Oracle,
    PipelineShape,
    SpeculationFigures,
    SpeculationSimulation,
)
from bench.papers.aquapipe.prefetching import AquaPipe
from bench.papers.hedrarag.speculative_generation import HedraRag
from bench.papers.ragcache.speculative_pipelining import RagCache
from bench.simulator.llm_steps import EngineCosts
from generator.plan.speculation.auto import Auto
from generator.plan.speculation.likely import Likely
from generator.plan.speculation.none import NoSpeculation
from generator.plan.speculation.protocol import SpeculationPolicy
from generator.settings import GeneratorSettings
from indexer.plan.defaults import default_nprobe

PolicyRow = Literal["none", "ragcache", "aquapipe", "hedrarag", "likely", "auto", "oracle"]
OURS: PolicyRow = "likely"
POLICIES: dict[PolicyRow, Callable[[], SpeculationPolicy]] = {
    "none": NoSpeculation,
    "ragcache": RagCache,
    "aquapipe": AquaPipe,
    "hedrarag": HedraRag,
    "likely": Likely,
    "auto": lambda: Auto(Likely()),
}
"""The rows beside the oracle's, and the policies that they show."""
ANSWER_TOKENS = 16
"""Tokens of an answer, on average."""
COSTS = EngineCosts(step_us=64_000, prefill_us=1_350, decode_us=7_000)
"""Of SmolLM2 135M in vLLM on two cores."""
AT_ONCE = 8
SHORT_S = 0.006
CASES: tuple[tuple[ScanOrder, int, tuple[float, ...]], ...] = (
    ("nearest", 1, (SHORT_S, 0.3, 0.5, 1.0)),
    ("shared", 1, (1.0,)),
    ("history", 1, (1.0,)),
    ("nearest", AT_ONCE, (1.0,)),
    ("shared", AT_ONCE, (1.0,)),
)
"""Order of the clusters, questions at once, seconds of a search."""
CHARACTERS_A_TOKEN = 4.2
PASSAGE_TOKENS = 10
"""The number of a passage and the lines around it."""
HIDDEN_MIN = {1.0: 0.9, 0.5: 0.7}
"""The least share of what the oracle hides, by the seconds of a search."""
WASTE_MAX = 0.25


class OrderFigures(msgspec.Struct, frozen=True, kw_only=True):
    """Searches in one order of the clusters.

    `final_at`: the share of a question's bytes after which its passages and their order are final,
    the median, and `final_at_mean`. `bytes_a_question`: that the disk reads.
    """

    nlist: int
    nprobe: int
    order: ScanOrder
    at_once: int
    final_at: float
    final_at_mean: float
    bytes_a_question: float


class PolicyFigures(msgspec.Struct, frozen=True, kw_only=True):
    """One policy on searches of `search_s`. `of_oracle`: its hidden share over the oracle's."""

    nlist: int
    order: ScanOrder
    at_once: int
    search_s: float
    policy: PolicyRow
    figures: SpeculationFigures
    of_oracle: float


class SpeculationResult(msgspec.Struct, frozen=True, kw_only=True):
    """The figures of a run. `passage_tokens`: of a passage in a prompt, on average."""

    nprobe: dict[int, int]
    passage_tokens: float
    orders: tuple[OrderFigures, ...]
    policies: tuple[PolicyFigures, ...]


def run(options: SpeculationOptions) -> bool:
    """Runs the benchmark; returns whether every promise was kept. Raises `ConfigError`."""
    start = RunStart.now()
    data = find_data(options.data)
    with threadpool_limits(limits=1), progress_bars() as tell:
        result = measure(data, options, tell)
    vectors = (data.vectors_path(CORPUS), data.vectors_path(_questions_name(options)))
    report = start.report(
        "speculation",
        settings=reported(options) | {"nlist": options.nlist},
        promises=promises_of(result),
        results=result,
        data=tuple(map(data_file, (data.corpus_path, *vectors))),
    )
    return finish(report, options.json_file, lambda console: print_result(console, result))


def measure(data: EvaluationData, options: SpeculationOptions, tell: Tell) -> SpeculationResult:
    """Returns the figures of `options`. Takes minutes."""
    corpus = read_vectors(data.vectors_path(CORPUS))
    questions = read_vectors(data.vectors_path(_questions_name(options)))
    chosen = np.random.default_rng(options.seed).permutation(len(questions))[: options.questions]
    tokens = passage_tokens(data)
    orders: list[OrderFigures] = []
    policies: list[PolicyFigures] = []
    for nlist in options.nlist:
        nprobe = default_nprobe(nlist)
        searched = SearchedCorpus(
            corpus,
            cluster_quickly(corpus, nlist=nlist, seed=options.seed),
            questions[chosen],
            nprobe=nprobe,
            top_k=options.passages,
        )
        for number, (order, at_once, seconds) in enumerate(CASES, 1):
            found = searched.search(order, in_progress=at_once)
            orders.append(_order_figures(nlist, nprobe, order, at_once, found))
            for search_s in seconds:
                shape = PipelineShape(
                    search_us=round(search_s * 1e6),
                    clients=at_once,
                    answer_tokens=ANSWER_TOKENS,
                )
                for name, figures, share in _every_policy(found.searches, tokens, shape):
                    policies.append(
                        PolicyFigures(
                            nlist=nlist,
                            order=order,
                            at_once=at_once,
                            search_s=search_s,
                            policy=name,
                            figures=figures,
                            of_oracle=share,
                        )
                    )
            tell(f"nlist {nlist}", number, len(CASES))
    return SpeculationResult(
        nprobe={nlist: default_nprobe(nlist) for nlist in options.nlist},
        passage_tokens=float(np.mean(tokens)),
        orders=tuple(orders),
        policies=tuple(policies),
    )


def _questions_name(options: SpeculationOptions) -> str:
    return f"queries-{options.source}"


def passage_tokens(data: EvaluationData) -> list[int]:
    """Returns the tokens of each passage in a prompt, from its characters."""
    settings = GeneratorSettings()
    characters = (
        len(passage.title) + min(len(passage.text), settings.passage_chars_max)
        for passage in read_passages(data.corpus_path)
    )
    return [PASSAGE_TOKENS + round(count / CHARACTERS_A_TOKEN) for count in characters]


def _order_figures(
    nlist: int, nprobe: int, order: ScanOrder, at_once: int, found: Searches
) -> OrderFigures:
    final_at = np.array([search.final_at for search in found.searches])
    return OrderFigures(
        nlist=nlist,
        nprobe=nprobe,
        order=order,
        at_once=at_once,
        final_at=float(np.median(final_at)),
        final_at_mean=float(final_at.mean()),
        bytes_a_question=found.bytes_a_question,
    )


def _every_policy(
    searches: Sequence[ProgressiveSearch],
    tokens: Sequence[int],
    shape: PipelineShape,
) -> list[tuple[PolicyRow, SpeculationFigures, float]]:
    def figures(policy: SpeculationPolicy) -> SpeculationFigures:
        return SpeculationSimulation(searches, tokens, policy, shape, COSTS).run()

    best = figures(Oracle(final_passages(searches)))
    rows: list[tuple[PolicyRow, SpeculationFigures, float]] = []
    for name, policy in POLICIES.items():
        found = figures(policy())
        rows.append((name, found, found.hidden_share / max(best.hidden_share, 1e-9)))
    return [*rows, ("oracle", best, 1.0)]


def promises_of(result: SpeculationResult) -> dict[str, bool]:
    """Returns each promise and whether it was kept."""
    promises: dict[str, bool] = {}
    for search_s, share_min in HIDDEN_MIN.items():
        ours = [
            row
            for row in result.policies
            if (row.order, row.at_once) == ("nearest", 1)
            and (row.policy, row.search_s) == (OURS, search_s)
        ]
        name = f"{OURS}, searches of {search_s:g} s, one at once"
        promises[f"{name}: hides at least {share_min:g} of what the oracle hides"] = all(
            row.of_oracle >= share_min for row in ours
        )
        promises[f"{name}: waste at most {WASTE_MAX:g}"] = all(
            row.figures.waste <= WASTE_MAX for row in ours
        )
    promises["auto warms nothing for searches of 6 ms"] = not any(
        row.figures.warm_ups_a_question
        for row in result.policies
        if (row.policy, row.search_s) == ("auto", SHORT_S)
    )
    return promises


def print_result(console: Console, result: SpeculationResult) -> None:
    """Prints a table of the orders, and one of the policies."""
    table = Table("nlist", "clusters", "at once", "final at", "mean", "MB a question")
    for one in result.orders:
        table.add_row(
            str(one.nlist),
            one.order,
            str(one.at_once),
            f"{one.final_at:.2f}",
            f"{one.final_at_mean:.2f}",
            f"{one.bytes_a_question / 1e6:.2f}",
        )
    console.print(table)
    names = ("hidden", "of oracle", "waste", "first token ms", "mean", "warm-ups")
    table = Table("nlist", "clusters", "at once", "search s", "policy", *names)
    for row in result.policies:
        figures = row.figures
        table.add_row(
            str(row.nlist),
            row.order,
            str(row.at_once),
            f"{row.search_s:g}",
            row.policy,
            f"{figures.hidden_share:.3f}",
            f"{row.of_oracle:.2f}",
            f"{figures.waste:.3f}",
            f"{figures.ttft_ms:.0f}",
            f"{figures.ttft_ms_mean:.0f}",
            f"{figures.warm_ups_a_question:.2f}",
        )
    console.print(table)
