"""Which passages of a search that still runs are worth computing? Three papers, ours, an oracle."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

import msgspec
from rich.console import Console
from rich.table import Table
from threadpoolctl import threadpool_limits  # type: ignore[import-untyped]

from bench.core.command import reported
from bench.core.machine import data_file
from bench.core.progress import Tell, progress_bars
from bench.core.run import begin
from bench.data.evaluation import CORPUS, EvaluationData, find_data
from bench.papers.aquapipe.options import SpeculationOptions
from bench.papers.aquapipe.prefetching import AquaPipe
from bench.papers.aquapipe.searches import passage_tokens, searches
from bench.papers.hedrarag.speculative_generation import HedraRag
from bench.papers.ragcache.speculative_pipelining import RagCache
from bench.simulator.warm_ups import Found, WarmUpFigures, WarmUpLoad, WarmUpSimulation
from generator.plan.speculation import protocol
from generator.plan.speculation.auto import Auto
from generator.plan.speculation.likely import Likely, common
from generator.plan.speculation.protocol import NoSpeculation
from generator.plan.speculation.warm_ups import Passages, WarmUps

STATED = (
    "RAGCache: with speculative pipelining the first token comes up to 1.6 times sooner, and 1.5 "
    "to 4.3 times less of the search is not hidden (Figure 19, Table 3)\n"
    "AquaPipe: the first token comes 1.3 to 2.6 times sooner, and 56 to 99 % of the search is "
    "hidden (sections 5.2.1 and 5.2.2)\n"
    "HedraRAG: 1.06 to 1.62 times less latency than other ways to speculate (Figure 17)"
)
POLICIES: dict[str, Callable[[], protocol.SpeculationPolicy]] = {
    "none": NoSpeculation,
    "ragcache": RagCache,
    "aquapipe": AquaPipe,
    "hedrarag": HedraRag,
    "likely": Likely,
    "auto": lambda: Auto(Likely()),
}
"""`auto` is what the generator has: `likely`, while that pays."""
LOADS = (
    *(WarmUpLoad(search_us=us, clients=1) for us in (6_000, 500_000, 1_000_000)),
    WarmUpLoad(search_us=1_000_000, clients=8),
)
SAVED_MIN = {500_000: 0.7, 1_000_000: 0.9}
"""Promised of `likely`, one question at once: the least share of what the oracle saves."""
IN_VAIN_MAX = 0.25


class PolicyRow(msgspec.Struct, frozen=True, kw_only=True):
    """One policy under one load. `of_oracle`: what it saves over what the oracle saves."""

    nlist: int
    load: WarmUpLoad
    policy: str
    figures: WarmUpFigures
    of_oracle: float


class Oracle:
    """Warms what a draft has of the final prompt, as soon as there is a draft that has it."""

    def __init__(self, final: Mapping[str, Passages]) -> None:
        """`final`: the passages of each question."""
        self._final = final
        self._warm_ups = WarmUps()

    def step(
        self, event: protocol.SpeculationEvent, load: protocol.EngineLoad
    ) -> tuple[protocol.SpeculationAction, ...]:
        """Wishes for the final passages that the draft begins with."""
        match event:
            case protocol.DraftFound():
                right = common(event.passages, self._final[event.query])
                return self._warm_ups.follow(event, right, load)
            case protocol.WarmUpEnded():
                return self._warm_ups.ended(event, load)
            case protocol.SearchEnded() | protocol.QueryAnswered():
                self._warm_ups.forget(event.query)
                return ()


def run(options: SpeculationOptions) -> bool:
    """Runs the figure; returns whether every promise was kept. Raises `ConfigError`."""
    run = begin("speculation", options)
    data = find_data(options.data)
    with threadpool_limits(limits=1), progress_bars() as tell:
        rows = measure(data, options, tell)
    return run.finish(
        lambda console: print_rows(console, rows),
        settings=reported(options) | {"nlist": options.nlist},
        promises=promises_of(rows),
        results=rows,
        data=(data_file(data.corpus_path), data_file(data.vectors_path(CORPUS))),
    )


def measure(data: EvaluationData, options: SpeculationOptions, tell: Tell) -> list[PolicyRow]:
    """Returns a row for each load and policy."""
    tokens = passage_tokens(data)
    rows: list[PolicyRow] = []
    for nlist in options.nlist:
        found = searches(
            data,
            source=options.source,
            questions=options.questions,
            nlist=nlist,
            seed=options.seed,
        )
        searched = tuple(found)
        for number, load in enumerate(LOADS, 1):
            rows += policy_rows(searched, tokens, nlist, load)
            tell(f"nlist {nlist}", number, len(LOADS))
    return rows


def policy_rows(
    searched: Sequence[Sequence[Found]], tokens: Sequence[int], nlist: int, load: WarmUpLoad
) -> list[PolicyRow]:
    """Returns a row for each policy, the oracle's last."""
    final = {str(number): found[-1].passages for number, found in enumerate(searched)}
    policies = {name: make() for name, make in POLICIES.items()} | {"oracle": Oracle(final)}
    figures = {
        name: WarmUpSimulation(searched, tokens, policy, load).run()
        for name, policy in policies.items()
    }
    best = max(figures["oracle"].saved, 1e-9)
    return [
        PolicyRow(nlist=nlist, load=load, policy=name, figures=one, of_oracle=one.saved / best)
        for name, one in figures.items()
    ]


def promises_of(rows: Sequence[PolicyRow]) -> dict[str, bool]:
    """Returns each promise and whether it was kept."""
    promises: dict[str, bool] = {}
    ours = [row for row in rows if row.policy == "likely" and row.load.clients == 1]
    for search_us, share_min in SAVED_MIN.items():
        some = [row for row in ours if row.load.search_us == search_us]
        name = f"likely, one at once, searches of {search_us / 1e6:g} s"
        promises[f"{name}: saves at least {share_min:g} of what the oracle saves"] = all(
            row.of_oracle >= share_min for row in some
        )
        promises[f"{name}: at most {IN_VAIN_MAX:g} in vain"] = all(
            row.figures.in_vain <= IN_VAIN_MAX for row in some
        )
    promises["auto warms nothing for searches of 6 ms"] = not any(
        row.figures.warm_ups_a_question
        for row in rows
        if (row.policy, row.load.search_us) == ("auto", LOADS[0].search_us)
    )
    return promises


def print_rows(console: Console, rows: Sequence[PolicyRow]) -> None:
    """Prints what the papers state, and a line for each policy and load."""
    console.print(STATED)
    names = ("saved", "of oracle", "in vain", "first token ms", "warm-ups")
    table = Table("nlist", "search s", "at once", "policy", *names)
    for row in rows:
        figures = row.figures
        table.add_row(
            str(row.nlist),
            f"{row.load.search_us / 1e6:g}",
            str(row.load.clients),
            row.policy,
            f"{figures.saved:.2f}",
            f"{row.of_oracle:.2f}",
            f"{figures.in_vain:.2f}",
            f"{figures.ttft_ms:.0f}",
            f"{figures.warm_ups_a_question:.2f}",
        )
    console.print(table)
