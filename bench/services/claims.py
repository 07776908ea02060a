"""`carpool bench claims`: do the services find what an exact search finds, and is it evidence?

Every claim goes through broker, grouper and searcher. The retrievals are compared with FAISS in
memory, given the query vectors that the grouper used.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping

import msgspec
import numpy as np

from bench.core.accounting import Accounting, answers_of, final_retrievals, retrieval_accounting
from bench.core.load import even
from bench.core.topic_recorder import ReceivedRecord
from bench.data.evaluation import CLAIMS, EVIDENCE, Float32, read_evidence
from bench.data.exact import MemorySearch, Ranking
from bench.data.index import memory_search
from bench.services.corpus import CorpusRun
from bench.services.options import ClaimsOptions
from carpool.errors import CarpoolError
from schemas.codec import decode
from schemas.group import Group
from schemas.retrieval import Retrieval
from schemas.topics import ANSWERS, GROUPS, RETRIEVALS

EVIDENCE_MARGIN = 0.01
"""How much less often than exact search an evidence page may be among the first five."""
SERVICES = ("grouper", "searcher")
FIRST = 5
RATE_PER_S = 100.0
SETTLE_S = 2.0
DIFFERENT_MAX = 20


class ClaimsResult(msgspec.Struct, frozen=True, kw_only=True):
    """The result. Evidence: the share of claims with an evidence page among the first five.

    `ids`: retrievals by their verdict. `different`: up to 20 claims with that verdict.
    """

    retrievals: Accounting
    ids: dict[str, int]
    different: tuple[str, ...]
    nprobe: int
    evidence_services: float
    evidence_exact: float

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
    run = CorpusRun("claims", options)
    claims = run.questions(CLAIMS)
    with run.session(SERVICES) as session:
        load = session.ask(claims, run.plan, even(RATE_PER_S), settle_s=SETTLE_S)
        ids, recorder = load.keys(), session.recorder
        records = recorder.records(RETRIEVALS.name)
        answers = answers_of(recorder.records(ANSWERS.name), ids)
        vectors = query_vectors(recorder.records(GROUPS.name))
    found = {key: retrieval for key, (retrieval, _) in final_retrievals(records, ids).items()}
    if not found:
        raise CarpoolError("no claim came back; see the services' logs")
    claim_ids = [str(claim.id) for claim in claims]
    ours = {claim_ids[load[key].row]: ranking_of(each) for key, each in found.items()}
    queries = np.stack([vectors[key] for key in found])
    search, nprobe = memory_search(run.data, run.index), run.index.manifest.nprobe_default
    evidence_path = run.data.file(EVIDENCE)
    pages = read_evidence(evidence_path)
    evidence = {claim: pages.get(claim, frozenset()) for claim in claim_ids}
    exact = dict(zip(ours, search.flat(queries, FIRST), strict=True))
    verdicts = verdicts_of(ours, queries, search, nprobe)
    result = ClaimsResult(
        retrievals=retrieval_accounting(ids, records, answers),
        ids={"same": 0, "tied": 0, "different": 0} | Counter(verdicts.values()),
        different=tuple(each for each in verdicts if verdicts[each] == "different")[:DIFFERENT_MAX],
        nprobe=nprobe,
        evidence_services=evidence_share(ours, evidence),
        evidence_exact=evidence_share(exact, evidence),
    )
    return run.finish(
        {"claims": {"services": result}},
        promises=result.promises(),
        results=result,
        **run.facts(run.data.file(f"{CLAIMS}.jsonl.gz"), evidence_path),
    )


def query_vectors(groups: Iterable[ReceivedRecord]) -> dict[str, Float32]:
    """Returns the vector that the grouper used, by query id: (dim,) float32 each."""
    return {
        grouped.query.query_id: np.frombuffer(grouped.vector, dtype="<f4")
        for record in groups
        for grouped in decode(Group, record.value, record.headers).queries
    }


def verdicts_of(
    ours: Mapping[str, Ranking], queries: Float32, search: MemorySearch, nprobe: int
) -> dict[str, str]:
    """Returns the verdict of each claim, against FAISS with the same vectors, (claims, dim)."""
    top_k = max(len(ranking.ids) for ranking in ours.values()) or FIRST
    expected = search.ivf(queries, top_k, nprobe)
    return {
        claim: search.verdict(query, ranking, wanted)
        for (claim, ranking), wanted, query in zip(ours.items(), expected, queries, strict=True)
    }


def ranking_of(retrieval: Retrieval) -> Ranking:
    """Returns the ids and scores of a retrieval."""
    hits = retrieval.hits
    return Ranking(ids=tuple(hit.doc_id for hit in hits), scores=tuple(hit.score for hit in hits))


def evidence_share(
    found: Mapping[str, Ranking], evidence: Mapping[str, frozenset[str]], first: int = FIRST
) -> float:
    """Returns the share of claims with one of its evidence pages among its `first` hits.

    Both map claim ids; a claim that found nothing counts as missed. Raises `ValueError` without
    evidence.
    """
    wanted = {claim: pages for claim, pages in evidence.items() if pages}
    if not wanted:
        raise ValueError("no claim has evidence, so there is no share to compute")
    hits = sum(
        claim in found and not pages.isdisjoint(found[claim].ids[:first])
        for claim, pages in wanted.items()
    )
    return hits / len(wanted)
