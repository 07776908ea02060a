"""`carpool bench claims`: do the services find what an exact search finds, and is it evidence?

Every claim goes through broker, grouper and searcher. The retrievals are compared with FAISS in
memory, given the query vectors that the grouper used.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import msgspec
import numpy as np
from rich.console import Console
from rich.table import Table

from bench.core.accounting import Accounting
from bench.core.agreement import Agreement, Ranking, agreement, compare
from bench.core.progress import Tell, progress_bars
from bench.data.evaluation import CLAIMS, Float32
from bench.data.exact import MemorySearch
from bench.data.index import memory_search, nprobes_to_try
from bench.services.corpus import CorpusRun, open_run
from bench.services.options import ClaimsOptions
from bench.services.results import (
    answers_of,
    final_retrievals,
    groups_of,
    query_vectors,
    retrieval_accounting,
)
from carpool.errors import CarpoolError
from producers.read_questions import Question
from schemas.retrieval import Retrieval
from schemas.topics import ANSWERS, GROUPS, RETRIEVALS

EVIDENCE_MARGIN = 0.01
"""How much less often than exact search an evidence page may be among the first five."""

SERVICES = ("grouper", "searcher")
FIRST = 5
RATE_PER_S = 100.0
SETTLE_S = 2.0


class ClaimsResult(msgspec.Struct, frozen=True, kw_only=True):
    """The result. Evidence: the share of claims with an evidence page among the first five."""

    retrievals: Accounting
    ids: Agreement
    nprobe: int
    evidence_services: float
    evidence_exact: float
    evidence_by_nprobe: dict[int, float]

    def promises(self) -> dict[str, bool]:
        """Returns each promise and whether it was kept."""
        checked = self.ids.same + self.ids.tied
        return {
            "each claim has one retrieval": self.retrievals.holds,
            "ids equal FAISS IVF-Flat's, but for equal scores": self.ids.holds
            and checked == self.retrievals.published,
            "evidence within 1 point of exact search": self.evidence_services
            >= self.evidence_exact - EVIDENCE_MARGIN,
        }


class ServedClaims(msgspec.Struct, frozen=True, kw_only=True):
    """What the services wrote about the claims, by query id. `claim_of`: the claim of each id."""

    claim_of: dict[str, str]
    retrievals: dict[str, Retrieval]
    vectors: dict[str, Float32]
    accounting: Accounting


def run(options: ClaimsOptions) -> bool:
    """Runs the benchmark; returns whether every promise was kept. Raises `CarpoolError`."""
    run = open_run("claims", options)
    search = memory_search(run.data, run.index)
    with progress_bars() as tell:
        served = _serve(run, run.questions(CLAIMS), tell)
    manifest = run.index.manifest
    result = judge(
        served,
        run.data.evidence(),
        search,
        nprobe=options.nprobe or manifest.nprobe_default,
        nprobes=nprobes_to_try(manifest.nlist, manifest.nprobe_default),
    )
    return run.finish(
        lambda console: print_claims(console, result),
        promises=result.promises(),
        results=result,
        **run.facts(run.data.questions_path(CLAIMS), run.data.evidence_path),
    )


def _serve(run: CorpusRun, claims: Sequence[Question], tell: Tell) -> ServedClaims:
    """Publishes the claims and reads what the services write about them."""
    with run.session(SERVICES, run.index, run.folder) as session:
        load = session.ask(
            claims,
            msgspec.structs.replace(run.plan, nprobe=run.options.nprobe),
            rate_per_s=RATE_PER_S,
            settle_s=SETTLE_S,
            on_sent=lambda done: tell("claims sent", done, len(claims)),
            on_seen=lambda done: tell("claims retrieved", done, len(claims)),
        )
        session.wait_quiet(*SERVICES)
        ids, recorder = load.sent.keys(), session.recorder
        records = recorder.records(RETRIEVALS.name)
        answers = answers_of(recorder.records(ANSWERS.name), ids)
        groups = groups_of(recorder.records(GROUPS.name), ids)
    found = final_retrievals(records, ids)
    return ServedClaims(
        claim_of={query_id: str(claims[sent.row].id) for query_id, sent in load.sent.items()},
        retrievals={query_id: retrieval for query_id, (retrieval, _) in found.items()},
        vectors=query_vectors(groups),
        accounting=retrieval_accounting(ids, records, answers),
    )


def judge(
    served: ServedClaims,
    evidence: Mapping[str, frozenset[str]],
    search: MemorySearch,
    *,
    nprobe: int,
    nprobes: Sequence[int],
) -> ClaimsResult:
    """Compares ids with FAISS at the same centroids and nprobe, and evidence with exact search.

    `nprobes`: further ones whose evidence is reported.
    """
    query_ids = sorted(served.retrievals.keys() & served.vectors.keys())
    if not query_ids:
        raise CarpoolError(
            "no claim came back with the vector that was searched with; see the services' logs"
        )
    queries = np.stack([served.vectors[query_id] for query_id in query_ids])
    claims = [served.claim_of[query_id] for query_id in query_ids]
    wanted = {claim: evidence[claim] for claim in served.claim_of.values() if claim in evidence}

    def share(rankings: Sequence[Ranking]) -> float:
        found = {claim: ranking.ids for claim, ranking in zip(claims, rankings, strict=True)}
        return evidence_share(found, wanted)

    ours = {
        served.claim_of[query_id]: [hit.doc_id for hit in found.hits]
        for query_id, found in served.retrievals.items()
    }
    return ClaimsResult(
        retrievals=served.accounting,
        ids=_agreement(served, query_ids, queries, search, nprobe),
        nprobe=nprobe,
        evidence_services=evidence_share(ours, wanted),
        evidence_exact=share(search.flat(queries, FIRST)),
        evidence_by_nprobe={tried: share(search.ivf(queries, FIRST, tried)) for tried in nprobes},
    )


def _agreement(
    served: ServedClaims,
    query_ids: Sequence[str],
    queries: Float32,
    search: MemorySearch,
    nprobe: int,
) -> Agreement:
    found_hits = [served.retrievals[query_id].hits for query_id in query_ids]
    top_k = max(map(len, found_hits)) or FIRST
    verdicts = []
    expected_rankings = search.ivf(queries, top_k, nprobe)
    for query_id, hits, query, expected in zip(
        query_ids, found_hits, queries, expected_rankings, strict=True
    ):
        found = Ranking(
            ids=tuple(hit.doc_id for hit in hits), scores=tuple(hit.score for hit in hits)
        )
        verdict, why = compare(found, expected, search.true_scores(query, found.ids))
        verdicts.append((served.claim_of[query_id], verdict, why))
    return agreement(verdicts)


def evidence_share(
    found: Mapping[str, Sequence[str]], evidence: Mapping[str, frozenset[str]], first: int = FIRST
) -> float:
    """Returns the share of claims with one of its evidence pages among its `first` hits.

    Both map claim ids; a claim that found nothing counts as missed. Raises `ValueError` without
    evidence.
    """
    if not evidence:
        raise ValueError("no claim has evidence, so there is no share to compute")
    hits = sum(
        not pages.isdisjoint(found.get(claim, ())[:first]) for claim, pages in evidence.items()
    )
    return hits / len(evidence)


def print_claims(console: Console, result: ClaimsResult) -> None:
    """Prints the tables of a result."""
    ids, claims = result.ids, result.retrievals
    table = Table(
        *("claims", "retrieved", "missing", "duplicates", "ids equal", "equal scores", "different"),
        title="Claims",
    )
    counts = (claims.published, claims.answered, claims.missing, claims.duplicates)
    table.add_row(*map(str, (*counts, ids.same, ids.tied, ids.different)))
    console.print(table)
    for example in ids.examples:
        console.print(f"  {example}", style="red")
    shares = Table("search", "nprobe", "evidence in the first five", title="Evidence")
    shares.add_row("services", str(result.nprobe), f"{result.evidence_services:.1%}", style="bold")
    shares.add_row("exact, in memory", "-", f"{result.evidence_exact:.1%}")
    for nprobe, share in result.evidence_by_nprobe.items():
        shares.add_row("FAISS IVF-Flat, in memory", str(nprobe), f"{share:.1%}")
    console.print(shares)
