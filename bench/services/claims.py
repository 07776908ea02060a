"""`carpool bench claims`: do the services find what an exact search finds, and is it evidence?

Every claim goes through broker, grouper and searcher. The retrievals are compared with FAISS in
memory, given the query vectors that the grouper used.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence

import msgspec
import numpy as np

from bench.core.accounting import Accounting
from bench.core.progress import progress_bars
from bench.data.evaluation import CLAIMS, Float32
from bench.data.exact import MemorySearch, Ranking, compare
from bench.data.index import memory_search, nprobes_to_try
from bench.services.corpus import open_run
from bench.services.options import ClaimsOptions
from bench.services.results import (
    answers_of,
    final_retrievals,
    query_vectors,
    retrieval_accounting,
)
from carpool.errors import CarpoolError
from schemas.retrieval import Retrieval
from schemas.topics import ANSWERS, GROUPS, RETRIEVALS

EVIDENCE_MARGIN = 0.01
"""How much less often than exact search an evidence page may be among the first five."""
SERVICES = ("grouper", "searcher")
FIRST = 5
RATE_PER_S = 100.0
SETTLE_S = 2.0
DIFFERENT_MAX = 20

Evidence = Mapping[str, frozenset[str]]
"""The pages that are evidence, by claim."""


class ServedClaim(msgspec.Struct, frozen=True, kw_only=True):
    """A claim and what the services found. `vector`: (dim,) float32, that was searched with."""

    id: str
    retrieval: Retrieval
    vector: Float32


class ClaimsResult(msgspec.Struct, frozen=True, kw_only=True):
    """The result. Evidence: the share of claims with an evidence page among the first five.

    `ids`: retrievals by the verdict of `compare`. `different`: up to 20 claims with that verdict.
    """

    retrievals: Accounting
    ids: dict[str, int]
    different: tuple[str, ...]
    nprobe: int
    evidence_services: float
    evidence_exact: float
    evidence_by_nprobe: dict[int, float]

    def promises(self) -> dict[str, bool]:
        """Returns each promise and whether it was kept."""
        return {
            "each claim has one retrieval": self.retrievals.holds,
            "ids equal FAISS IVF-Flat's, but for equal scores": self.retrievals.published
            == self.ids["same"] + self.ids["tied"],
            "evidence within 1 point of exact search": self.evidence_services
            >= self.evidence_exact - EVIDENCE_MARGIN,
        }


def run(options: ClaimsOptions) -> bool:
    """Runs the benchmark; returns whether every promise was kept. Raises `CarpoolError`."""
    run = open_run("claims", options)
    claims, manifest = run.questions(CLAIMS), run.index.manifest
    with progress_bars() as tell, run.session(SERVICES) as session:
        load = session.ask(
            claims,
            msgspec.structs.replace(run.plan, nprobe=options.nprobe),
            rate_per_s=RATE_PER_S,
            settle_s=SETTLE_S,
            on_sent=lambda done: tell("claims sent", done, len(claims)),
            on_seen=lambda done: tell("claims retrieved", done, len(claims)),
        )
        session.wait_quiet(*SERVICES)
        ids, recorder = load.sent.keys(), session.recorder
        records = recorder.records(RETRIEVALS.name)
        answers = answers_of(recorder.records(ANSWERS.name), ids)
        vectors = query_vectors(recorder.records(GROUPS.name))
    served = [
        ServedClaim(
            id=str(claims[load.sent[query_id].row].id),
            retrieval=retrieval,
            vector=vectors[query_id],
        )
        for query_id, (retrieval, _) in sorted(final_retrievals(records, ids).items())
    ]
    result = judge(
        served,
        retrieval_accounting(ids, records, answers),
        {str(claim.id): run.data.evidence().get(str(claim.id), frozenset()) for claim in claims},
        memory_search(run.data, run.index),
        nprobe=options.nprobe or manifest.nprobe_default,
        nprobes=nprobes_to_try(manifest.nlist, manifest.nprobe_default),
    )
    return run.finish(
        {"claims": result},
        promises=result.promises(),
        results=result,
        **run.facts(run.data.questions_path(CLAIMS), run.data.evidence_path),
    )


def judge(
    served: Sequence[ServedClaim],
    retrievals: Accounting,
    evidence: Evidence,
    search: MemorySearch,
    *,
    nprobe: int,
    nprobes: Sequence[int],
) -> ClaimsResult:
    """Compares ids with FAISS at the same centroids and nprobe, and evidence with exact search.

    `nprobes`: further ones whose evidence is reported. Raises `CarpoolError` without a retrieval.
    """
    if not served:
        raise CarpoolError("no claim came back; see the services' logs")
    queries = np.stack([each.vector for each in served])
    ours = [ranking_of(each.retrieval) for each in served]

    def share(rankings: Sequence[Ranking]) -> float:
        found = {each.id: rank.ids for each, rank in zip(served, rankings, strict=True)}
        return evidence_share(found, evidence)

    top_k = max(len(ranking.ids) for ranking in ours) or FIRST
    expected = search.ivf(queries, top_k, nprobe)
    verdicts = {
        claim.id: compare(found, wanted, search.true_scores(claim.vector, found.ids))
        for claim, found, wanted in zip(served, ours, expected, strict=True)
    }
    different = [claim for claim, verdict in verdicts.items() if verdict == "different"]
    return ClaimsResult(
        retrievals=retrievals,
        ids={"same": 0, "tied": 0, "different": 0} | Counter(verdicts.values()),
        different=tuple(different[:DIFFERENT_MAX]),
        nprobe=nprobe,
        evidence_services=share(ours),
        evidence_exact=share(search.flat(queries, FIRST)),
        evidence_by_nprobe={tried: share(search.ivf(queries, FIRST, tried)) for tried in nprobes},
    )


def ranking_of(retrieval: Retrieval) -> Ranking:
    """Returns the ids and scores of a retrieval."""
    hits = retrieval.hits
    return Ranking(ids=tuple(hit.doc_id for hit in hits), scores=tuple(hit.score for hit in hits))


def evidence_share(
    found: Mapping[str, Sequence[str]], evidence: Evidence, first: int = FIRST
) -> float:
    """Returns the share of claims with one of its evidence pages among its `first` hits.

    Both map claim ids; a claim that found nothing counts as missed. Raises `ValueError` without
    evidence.
    """
    wanted = {claim: pages for claim, pages in evidence.items() if pages}
    if not wanted:
        raise ValueError("no claim has evidence, so there is no share to compute")
    hits = sum(
        not pages.isdisjoint(found.get(claim, ())[:first]) for claim, pages in wanted.items()
    )
    return hits / len(wanted)
