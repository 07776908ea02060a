"""Which passages of a search that still runs are worth computing? Three papers, ours, an oracle."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping

import numpy as np
from threadpoolctl import threadpool_limits  # type: ignore[import-untyped]

from bench.core.machine import data_file
from bench.core.run import BenchRun
from bench.data.evaluation import CORPUS, TRAFFIC, EvaluationData, find_data, read_vectors
from bench.data.grown import collection_of
from bench.papers.aquapipe.prefetching import AquaPipe, PrefixPolicy
from bench.papers.hedrarag.speculative_generation import HedraRag
from bench.papers.options import SpeculationOptions
from bench.papers.ragcache.speculative_pipelining import RagCache
from bench.papers.ragcache.streams import passage_tokens
from bench.simulator.warm_ups import Found, WarmUpFigures, WarmUpLoad, WarmUpSimulation, found_in
from generator.plan import warm_ups
from generator.plan.warm_ups import Auto, Likely, NoSpeculation, Passages, common

STATED = (
    "RAGCache: with speculative pipelining the first token comes up to 1.6 times sooner, and 1.5 "
    "to 4.3 times less of the search is not hidden (Figure 19, Table 3)\n"
    "AquaPipe: the first token comes 1.3 to 2.6 times sooner, and 56 to 99 % of the search is "
    "hidden (sections 5.2.1 and 5.2.2)\n"
    "HedraRAG: 1.06 to 1.62 times less latency than other ways to speculate (Figure 17)"
)
POLICIES: dict[str, Callable[[], warm_ups.SpeculationPolicy]] = {
    "none": NoSpeculation,
    "ragcache": RagCache,
    "aquapipe": AquaPipe,
    "hedrarag": HedraRag,
    "auto": lambda: Auto(Likely()),
}
"""`auto` is what the generator has."""
PASSAGES, QUESTIONS = 3, 400
NLISTS = (100, 1000)
SAVED_MIN = {500_000: 0.6, 1_000_000: 0.75}
"""By the time of a search in microseconds: promised of `auto`, the least share of what the oracle
saves."""
IN_VAIN_MAX = 0.2


def oracle_of(final: Mapping[str, Passages]) -> PrefixPolicy:
    """Returns a policy that warms what each draft has of the final passages of its question."""
    return PrefixPolicy(lambda draft: common(draft.passages, final[draft.query]))


def run(options: SpeculationOptions) -> bool:
    run = BenchRun("speculation", options)
    run.note(f"The papers: {STATED}")
    data = find_data(options.data)
    tokens = passage_tokens(data)
    tables: dict[str, dict[str, WarmUpFigures]] = {}
    promises = {}
    for nlist in NLISTS:
        run.note(f"nlist {nlist}")
        with threadpool_limits(limits=1):
            searched = tuple(searches(data, nlist=nlist, seed=options.seed))
        oracle = oracle_of({str(at): found[-1].passages for at, found in enumerate(searched)})
        for search_us, share_min in SAVED_MIN.items():
            policies = {name: make() for name, make in POLICIES.items()} | {"oracle": oracle}
            load = WarmUpLoad(search_us=search_us)
            found = {
                name: WarmUpSimulation(searched, tokens, each, load).run()
                for name, each in policies.items()
            }
            title = f"nlist {nlist}, searches of {search_us / 1e6:g} s"
            tables[title] = found
            auto, best = found["auto"], found["oracle"].saved
            promises[
                f"{title}: auto saves {share_min:g} of what the oracle saves, {IN_VAIN_MAX:g} in "
                "vain"
            ] = auto.saved >= share_min * best and auto.in_vain <= IN_VAIN_MAX

    return run.finish(
        tables,
        promises=promises,
        results=tables,
        data=(data_file(data.corpus_path), data_file(data.vectors_path(CORPUS))),
    )


def searches(
    data: EvaluationData, *, nlist: int, seed: int, questions: int = QUESTIONS
) -> Iterator[tuple[Found, ...]]:
    """Yields what each of some questions has found. A search takes the time of its rows."""
    vectors = read_vectors(data.vectors_path(TRAFFIC))
    chosen = np.random.default_rng(seed).permutation(len(vectors))[:questions]
    collection = collection_of(data, nlist, None, seed)
    for vector, probed in zip(vectors[chosen], collection.probed(vectors[chosen]), strict=True):
        yield found_in(probed.tolist(), vector, collection.corpus, collection.rows_of, PASSAGES)
