"""`carpool bench claims`: do the services find what an exact search finds, and is what they find
evidence?

Every claim goes through broker, grouper and searcher. What comes back is compared with FAISS in
memory, given the query vectors that the grouper used; a number of claims go on through the
generator.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

import msgspec
import numpy as np

from bench.core.accounting import Books
from bench.core.agreement import Agreement, Ranking, agreement, compare
from bench.core.memory import MemoryPeaks, MemoryWatch
from bench.core.session import Asked, Session, open_session
from bench.data.exact import Float32, MemorySearch
from bench.data.index import BenchIndex, nprobes_to_try
from bench.services.figures import evidence_share
from bench.services.results import (
    Generated,
    answers_of,
    final_retrievals,
    generated,
    groups_of,
    query_vectors,
    retrieval_books,
)
from carpool.errors import CarpoolError
from producers.read_questions import Question
from producers.send_load import LoadPlan
from schemas.retrieval import Retrieval
from schemas.topics import ANSWERS, GROUPS, RETRIEVALS

EVIDENCE_MARGIN = 0.01
"""How much less often than exact search an evidence page may be among the first five."""

FIRST = 5
SETTLE_S = 2.0
STALLED_S = 60.0
STALLED_LLM_S = 600.0

Tell = Callable[[str, int, int], None]
"""Called with a step, how much of it is done, and how much there is."""


class ClaimsRequest(msgspec.Struct, frozen=True, kw_only=True):
    """What to run. `nprobe` None: what the index was measured for. `generate`: claims that go
    through the generator.
    """

    bootstrap: str | None
    work_dir: Path
    plan: LoadPlan
    nprobe: int | None
    rate_per_s: float
    generate: int
    llm_url: str | None
    settings: dict[str, str]


class ClaimsResult(msgspec.Struct, frozen=True, kw_only=True):
    """What came of it. Shares are of claims with an evidence page among the first five; `promises`
    says what held.
    """

    retrievals: Books
    ids: Agreement
    nprobe: int
    evidence_services: float
    evidence_exact: float
    evidence_by_nprobe: dict[int, float]
    evidence_margin: float
    generated: Generated | None
    memory: dict[str, MemoryPeaks]
    promises: dict[str, bool]


class Heard(msgspec.Struct, frozen=True, kw_only=True):
    """What the services wrote of the claims, by query id, and which claim each was.
    `asked_for_answers`: ids.
    """

    claim_of: dict[str, str]
    asked_for_answers: frozenset[str]
    retrievals: dict[str, Retrieval]
    vectors: dict[str, Float32]
    books: Books
    generated: Generated | None
    memory: dict[str, MemoryPeaks]


def run_claims(
    request: ClaimsRequest,
    index: BenchIndex,
    claims: Sequence[Question],
    evidence: Mapping[str, frozenset[str]],
    search: MemorySearch,
    tell: Tell,
) -> ClaimsResult:
    """Runs the claims and judges what came back. Blocks for minutes. Raises `CarpoolError` when the
    run itself broke.
    """
    heard = _hear(request, index, claims, tell)
    return judge(request, index, heard, evidence, search)


def _hear(
    request: ClaimsRequest, index: BenchIndex, claims: Sequence[Question], tell: Tell
) -> Heard:
    """Publishes the claims and returns what came back: first those that are to be answered, with
    the generator running.
    """
    services = ("grouper", "searcher", "generator") if request.generate else ("grouper", "searcher")
    with (
        open_session(
            bootstrap=request.bootstrap,
            index_dir=index.dir,
            work_dir=request.work_dir,
            services=services,
            settings=request.settings,
            llm_url=request.llm_url,
        ) as session,
        MemoryWatch({name: session.stack[name].pid for name in services}) as watch,
    ):
        claim_of: dict[str, str] = {}
        first = _ask(
            session, request, claims[: request.generate], ANSWERS.name, STALLED_LLM_S, tell
        )
        claim_of |= _claims_of(first, claims)
        if request.generate:
            # What comes now is not for it: it would answer all that is retrieved.
            session.stack["generator"].stop()
        rest = _ask(session, request, claims[request.generate :], RETRIEVALS.name, STALLED_S, tell)
        claim_of |= _claims_of(rest, claims[request.generate :])
        session.wait_quiet("grouper", "searcher")
        records = session.reader.records(RETRIEVALS.name)
        answers = answers_of(session.reader.records(ANSWERS.name), claim_of.keys())
        groups = groups_of(session.reader.records(GROUPS.name), claim_of.keys())
    retrievals = {
        query_id: found
        for query_id, (found, _) in final_retrievals(records, claim_of.keys()).items()
    }
    hits = {query_id: [hit.doc_id for hit in found.hits] for query_id, found in retrievals.items()}
    asked = frozenset(first.sent) if first is not None else frozenset()
    return Heard(
        claim_of=claim_of,
        asked_for_answers=asked,
        retrievals=retrievals,
        vectors=query_vectors(groups),
        books=retrieval_books(claim_of.keys(), records, answers),
        generated=generated(asked, [answer for answer in answers if answer.query_id in asked], hits)
        if asked
        else None,
        memory=watch.peaks(),
    )


def _ask(
    session: Session,
    request: ClaimsRequest,
    claims: Sequence[Question],
    until: str,
    stalled_s: float,
    tell: Tell,
) -> Asked | None:
    if not claims:
        return None
    what = "answered" if until == ANSWERS.name else "retrieved"
    plan = msgspec.structs.replace(request.plan, nprobe=request.nprobe)
    return session.ask(
        claims,
        plan,
        rate_per_s=request.rate_per_s,
        topics=(until, ANSWERS.name),
        stalled_s=stalled_s,
        settle_s=SETTLE_S,
        on_sent=lambda done: tell(f"claims sent, to be {what}", done, len(claims)),
        on_seen=lambda done: tell(f"claims {what}", done, len(claims)),
    )


def _claims_of(asked: Asked | None, claims: Sequence[Question]) -> dict[str, str]:
    if asked is None:
        return {}
    return {query_id: str(claims[sent.row].id) for query_id, sent in asked.sent.items()}


def judge(
    request: ClaimsRequest,
    index: BenchIndex,
    heard: Heard,
    evidence: Mapping[str, frozenset[str]],
    search: MemorySearch,
) -> ClaimsResult:
    """Returns what came of a run: ids against FAISS with the same centroids and nprobe, evidence
    against exact search.
    """
    nprobe = request.nprobe or index.manifest.nprobe_default
    query_ids = sorted(heard.retrievals.keys() & heard.vectors.keys())
    if not query_ids:
        raise CarpoolError(
            "no claim came back with the vector that was searched with; see the logs of the "
            "services"
        )
    queries = np.stack([heard.vectors[query_id] for query_id in query_ids])
    ids = _agreement(heard, query_ids, queries, search, nprobe)
    wanted = {claim: evidence[claim] for claim in heard.claim_of.values() if claim in evidence}
    claims = [heard.claim_of[query_id] for query_id in query_ids]

    def share(rankings: Sequence[Ranking]) -> float:
        return evidence_share(
            {claim: found.ids for claim, found in zip(claims, rankings, strict=True)}, wanted, FIRST
        )

    ours = {
        heard.claim_of[query_id]: [hit.doc_id for hit in found.hits]
        for query_id, found in heard.retrievals.items()
    }
    found, exact = evidence_share(ours, wanted, FIRST), share(search.flat(queries, FIRST))
    promises = {
        "each claim has one retrieval": heard.books.holds,
        "ids equal FAISS IVF-Flat's, but for equal scores": ids.holds
        and len(query_ids) == len(heard.claim_of),
        "evidence within 1 point of exact search": found >= exact - EVIDENCE_MARGIN,
    }
    if heard.generated is not None:
        promises["each claim for the generator has one answer"] = heard.generated.books.holds
    return ClaimsResult(
        retrievals=heard.books,
        ids=ids,
        nprobe=nprobe,
        evidence_services=found,
        evidence_exact=exact,
        evidence_by_nprobe={
            tried: share(search.ivf(queries, FIRST, tried))
            for tried in nprobes_to_try(index.manifest.nlist, index.manifest.nprobe_default)
        },
        evidence_margin=EVIDENCE_MARGIN,
        generated=heard.generated,
        memory=heard.memory,
        promises=promises,
    )


def _agreement(
    heard: Heard, query_ids: Sequence[str], queries: Float32, search: MemorySearch, nprobe: int
) -> Agreement:
    top_k = (
        max((len(heard.retrievals[query_id].hits) for query_id in query_ids), default=FIRST)
        or FIRST
    )
    verdicts = []
    for query_id, query, expected in zip(
        query_ids, queries, search.ivf(queries, top_k, nprobe), strict=True
    ):
        hits = heard.retrievals[query_id].hits
        found = Ranking(
            ids=tuple(hit.doc_id for hit in hits), scores=tuple(hit.score for hit in hits)
        )
        verdict, why = compare(found, expected, search.true_scores(query, found.ids))
        verdicts.append((heard.claim_of[query_id], verdict, why))
    return agreement(verdicts)
