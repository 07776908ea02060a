"""`carpool bench claims`: do the services find what an exact search finds, and is it evidence?

Every claim goes through broker, grouper and searcher. The retrievals are compared with FAISS in
memory, given the query vectors that the grouper used.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence, Set

import numpy as np

from bench.core.accounting import account
from bench.core.load import even
from bench.core.topic_recorder import ReceivedRecord
from bench.data import evaluation
from bench.data.exact import BestRows, exact_answers, ivf_answers, verdict
from bench.data.index import BenchIndex
from bench.services.corpus import CorpusRun
from bench.services.options import ClaimsOptions
from carpool.arrays import Float32
from carpool.disk.centroids import read_centroids
from carpool.errors import CarpoolError
from schemas.codec import decode, decode_retrieval
from schemas.group import Group
from schemas.hit import Hit
from schemas.retrieval import Retrieval
from schemas.topics import ANSWERS, GROUPS, RETRIEVALS

EVIDENCE_MARGIN = 0.01
"""How much less often than exact search an evidence page may be among the first five."""
SERVICES = ("grouper", "searcher")
FIRST = 5
RATE_PER_S = 100.0
SETTLE_S = 2.0


def run(options: ClaimsOptions) -> bool:
    run = CorpusRun("claims", options)
    claims, evidence_path = (
        run.data.questions(evaluation.CLAIMS),
        run.data.file(evaluation.EVIDENCE),
    )
    with run.session(SERVICES) as session:
        load = session.send(claims, even(RATE_PER_S))
        session.recorder.wait(load.keys(), (RETRIEVALS.name, ANSWERS.name), settle_s=SETTLE_S)
        records = session.recorder.records(RETRIEVALS.name)
        vectors = query_vectors(session.recorder.records(GROUPS.name))
    found = first_retrievals(records, load.keys())
    if not found:
        raise CarpoolError("no claim came back; see the services' logs")
    hits = {claim: [(hit.doc_id, hit.score) for hit in each] for claim, each in found.items()}
    queries = np.stack([vectors[claim] for claim in found])
    passages = [each.doc_id for each in evaluation.read_passages(run.data.corpus_path)]
    rows = evaluation.read_vectors(run.data.vectors_path(evaluation.CORPUS))
    exact = exact_answers([(0, rows)], queries, FIRST).rows[:, :FIRST]
    verdicts = verdicts_of(run.index, passages, rows, queries, list(hits.values()))
    pages = evaluation.read_evidence(evidence_path)
    evidence = {claim: pages.get(claim, frozenset()) for claim in load}
    accounting = account(load, (record.key for record in records))
    ids = {"same": 0, "tied": 0, "different": 0} | Counter(verdicts)
    best = [[passages[row] for row in each] for each in exact]
    shares = {
        "evidence_services": evidence_share(
            {claim: [doc_id for doc_id, _ in each] for claim, each in hits.items()}, evidence
        ),
        "evidence_exact": evidence_share(dict(zip(hits, best, strict=True)), evidence),
    }
    result = {"retrievals": accounting, "ids": ids, **shares}
    return run.finish(
        {"claims": {"services": result}},
        promises={
            "each claim has one retrieval": accounting.holds,
            "ids equal FAISS IVF-Flat's, but for equal scores": ids["same"] + ids["tied"]
            == accounting.published,
            "evidence within 1 point of exact search": shares["evidence_services"]
            >= shares["evidence_exact"] - EVIDENCE_MARGIN,
        },
        results=result,
        **run.facts(run.data.file(f"{evaluation.CLAIMS}.jsonl.gz"), evidence_path),
    )


def first_retrievals(
    records: Iterable[ReceivedRecord], ids: Set[str]
) -> dict[str, tuple[Hit, ...]]:
    """Returns the hits of the first final retrieval of each of `ids`."""
    found: dict[str, tuple[Hit, ...]] = {}
    for record in records:
        if record.key in ids:
            retrieval = decode_retrieval(record.value, record.headers)
            if isinstance(retrieval, Retrieval) and retrieval.is_final:
                found.setdefault(record.key, retrieval.hits)
    return found


def query_vectors(groups: Iterable[ReceivedRecord]) -> dict[str, Float32]:
    """Returns the vector that the grouper used, by query id: (dim,) float32 each."""
    return {
        grouped.query.query_id: np.frombuffer(grouped.vector, dtype="<f4")
        for record in groups
        for grouped in decode(Group, record.value, record.headers).queries
    }


def verdicts_of(
    index: BenchIndex,
    passages: Sequence[str],
    rows: Float32,
    queries: Float32,
    hits: Sequence[Sequence[tuple[str, float]]],
) -> list[str]:
    """Returns the verdict of each claim, against FAISS with the same vectors, (claims, dim).

    `passages`: the ids of `rows`. `hits`: ids and scores of each claim.
    """
    top_k = max(map(len, hits)) or FIRST
    centroids, nprobe = read_centroids(index.dir, index.manifest), index.manifest.nprobe_default
    expected = ivf_answers(rows, centroids, queries, top_k, nprobe)
    row_of = {passage: row for row, passage in enumerate(passages)}
    found = [[(row_of.get(passage, -1), score) for passage, score in each] for each in hits]
    each_claim = zip(queries, found, map(BestRows, *expected), strict=True)
    return [verdict(rows, query, own, wanted) for query, own, wanted in each_claim]


def evidence_share(
    found: Mapping[str, Sequence[str]], evidence: Mapping[str, frozenset[str]], first: int = FIRST
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
