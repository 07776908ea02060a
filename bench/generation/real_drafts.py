"""Measures drafts on a real LLM server: time that long searches save, and what other queries pay.

Two stacks of services use one vLLM in turn: one with drafts and warm-ups, one without. Both stacks
answer the same questions. The stack without drafts has a salt of the prefix cache, so that neither
finds blocks of the other. The stack with drafts has none, because KV events of salted blocks are
not followed, and they say where blocks end. The other stack follows no events: they are not its
own.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from itertools import chain
from statistics import median

import msgspec
import numpy as np

from bench.core.session import Session
from bench.data.evaluation import TRAFFIC, read_vectors
from bench.generation.llm_server import LlmAddress
from bench.generation.slow_searcher import command
from bench.services.corpus import CorpusRun
from bench.services.results import answers_of, final_retrievals
from carpool.disk.centroids import probe, read_centroids
from carpool.disk.index import open_index
from carpool.errors import CarpoolError
from carpool.settings import environment_name
from producers.read_questions import NpyRows, Question, with_vectors
from schemas.answer import Answer
from schemas.retrieval import Retrieval
from schemas.topics import ANSWERS, RETRIEVALS
from searcher.passages.open import PASSAGE_BUFFERS_BYTES

SERVICES = ("grouper", "searcher", "generator")
MIB = 1 << 20
BUDGET_BYTES = PASSAGE_BUFFERS_BYTES + 2 * MIB
"""The searcher's budget: nearly nothing stays in memory, so each search reads its clusters."""
ANSWER_TOKENS = 16
PASSAGES = 3
STALLED_S = 120.0
AT_ONCE = 8


class AskedQuestion(msgspec.Struct, frozen=True, kw_only=True):
    """A question and its answer. `wait_ms`: from the end of the search to the first token."""

    question_id: str
    status: str
    search_ms: float
    wait_ms: float
    input_tokens: int
    cached_tokens: int


class Arm(msgspec.Struct, frozen=True, kw_only=True):
    """The questions of one round, of one stack. `computed_tokens`: by the server, warm-ups too."""

    asked: tuple[AskedQuestion, ...]
    computed_tokens: int
    warm_ups: int
    drafts: int

    @property
    def wait_ms(self) -> float:
        """The median wait."""
        return median(each.wait_ms for each in self.asked)

    @property
    def search_ms(self) -> float:
        """The median search."""
        return median(each.search_ms for each in self.asked)


class Round(msgspec.Struct, frozen=True, kw_only=True):
    """The same questions without drafts and with them."""

    without: Arm
    with_drafts: Arm

    @property
    def wait_ratio(self) -> float:
        """The median wait with drafts, over that without."""
        return self.with_drafts.wait_ms / self.without.wait_ms

    @property
    def computed_ratio(self) -> float:
        """The computed tokens with drafts, over those without."""
        return self.with_drafts.computed_tokens / self.without.computed_tokens


def disk_bytes_per_s(run: CorpusRun, search_s: float) -> float:
    """Returns the speed of a disk from which the clusters of a question take `search_s`."""
    index = open_index(run.index.dir)
    try:
        sizes = np.array([extent.size_bytes for extent in index.extents])
    finally:
        index.close()
    vectors = read_vectors(run.data.vectors_path(TRAFFIC))[:500]
    manifest = run.index.manifest
    probed = probe(read_centroids(run.index.dir, manifest), vectors, manifest.nprobe_default)
    return float(sizes[probed].sum(axis=1).mean()) / search_s


@contextmanager
def both_stacks(
    run: CorpusRun, llm: LlmAddress, policy: str, bytes_per_s: float | None
) -> Iterator[tuple[Session, Session]]:
    """Yields a stack without drafts and one with them. `bytes_per_s`: of the disk; None: as it is.

    Where the disk is not slowed down, all clusters fit memory, and a search takes milliseconds.
    """
    fixed = {
        ("generator", "reuse"): "false",
        ("generator", "passages_max"): str(PASSAGES),
        ("generator", "max_tokens"): str(ANSWER_TOKENS),
        ("generator", "concurrency"): str(AT_ONCE),
        ("llm", "model"): llm.model,
        ("llm", "sends_priority"): str(llm.is_own).lower(),
    }
    if bytes_per_s is not None:
        fixed |= {
            ("searcher", "search_mode"): "exact",
            ("searcher", "budget_bytes"): str(BUDGET_BYTES),
        }
    drafts = {("searcher", "drafts_after_ms"): "300", ("generator", "speculation"): policy}
    if llm.kv_events is not None:  # with them, warm-ups end with a full block
        drafts[("llm", "kv_events")] = llm.kv_events
    salt = {("llm", "extra_body"): msgspec.json.encode({"cache_salt": "without"}).decode()}
    with ExitStack() as opened:
        sessions = [
            opened.enter_context(
                run.session(
                    SERVICES,
                    run.index,
                    run.folder / name,
                    llm_url=llm.url,
                    settings={environment_name(*key): text for key, text in settings.items()},
                    commands={} if bytes_per_s is None else {"searcher": command(bytes_per_s)},
                )
            )
            for name, settings in (
                ("without", fixed | salt),
                ("with", fixed | drafts),
            )
        ]
        yield sessions[0], sessions[1]


def questions_of(run: CorpusRun, first: int, count: int) -> list[Question]:
    """Returns `count` questions with text and vector, from the index `first` on."""
    rows = NpyRows(run.data.vectors_path(TRAFFIC))
    questions = with_vectors(run.data.questions(TRAFFIC), rows, keep_text=True)
    return list(questions[first : first + count])


def measure_round(
    run: CorpusRun,
    llm: LlmAddress,
    sessions: tuple[Session, Session],
    questions: Sequence[Question],
    *,
    at_once: int,
    drafts_first: bool,
) -> Round:
    """Sends the same questions to both stacks, `at_once` to one and then to the other. The stacks
    are first in turns.
    """
    order = [0, 1]
    if drafts_first:
        order.reverse()
    parts: tuple[list[Arm], list[Arm]] = ([], [])
    for begin in range(0, len(questions), at_once):
        for place in order:
            some = questions[begin : begin + at_once]
            parts[place].append(_ask(run, llm, sessions[place], some))
        order.reverse()
        without, with_drafts = parts[0][-1], parts[1][-1]
        run.note(
            f"wait ms without drafts {without.wait_ms:.0f}, with {with_drafts.wait_ms:.0f}; "
            f"search ms {without.search_ms:.0f}, {with_drafts.search_ms:.0f}; computed tokens "
            f"{without.computed_tokens}, {with_drafts.computed_tokens}"
        )
    return Round(without=_together(parts[0]), with_drafts=_together(parts[1]))


def _together(arms: Sequence[Arm]) -> Arm:
    return Arm(
        asked=tuple(chain.from_iterable(arm.asked for arm in arms)),
        computed_tokens=sum(arm.computed_tokens for arm in arms),
        warm_ups=sum(arm.warm_ups for arm in arms),
        drafts=sum(arm.drafts for arm in arms),
    )


def _ask(run: CorpusRun, llm: LlmAddress, session: Session, some: Sequence[Question]) -> Arm:
    """Asks some questions at once, and waits for their answers."""
    computed = computed_tokens(llm)
    warm_ups, drafts = _warm_ups(session), _drafts(session)
    load = session.ask(
        some, run.plan, rate_per_s=1_000, topics=(ANSWERS.name,), stalled_s=STALLED_S
    )
    if not load.is_complete:
        raise CarpoolError("not every question was answered; see the logs of the services")
    sent = {query_id: str(some[one.row].id) for query_id, one in load.sent.items()}
    recorder = session.recorder
    answers = answers_of(recorder.records(ANSWERS.name), sent.keys())
    found = final_retrievals(recorder.records(RETRIEVALS.name), sent.keys())
    return Arm(
        asked=tuple(_asked(sent[each.query_id], each, found[each.query_id][0]) for each in answers),
        computed_tokens=round(computed_tokens(llm) - computed),
        warm_ups=round(_warm_ups(session) - warm_ups),
        drafts=round(_drafts(session) - drafts),
    )


def _asked(question_id: str, answer: Answer, retrieval: Retrieval) -> AskedQuestion:
    timings, usage = answer.timings_ms, answer.usage
    first_token_ms = retrieval.source.timestamp_ms + timings["total"] - timings.get("decode", 0.0)
    return AskedQuestion(
        question_id=question_id,
        status=answer.status,
        search_ms=(retrieval.timings_us["load"] + retrieval.timings_us["search"]) / 1_000,
        wait_ms=first_token_ms - retrieval.completed_us / 1_000,
        input_tokens=usage.input_tokens if usage else 0,
        cached_tokens=usage.cached_tokens if usage else 0,
    )


def _warm_ups(session: Session) -> float:
    return session.stack["generator"].metric("carpool_warm_ups_total")


def _drafts(session: Session) -> float:
    return session.stack["searcher"].metric("carpool_drafts_total")


def computed_tokens(llm: LlmAddress) -> float:
    """Returns the prompt tokens that a vLLM has computed since its start: not found in its cache.

    Raises `CarpoolError` where the server does not count them.
    """
    counts = {sample.name: sample.value for sample in llm.metrics()}
    try:
        return counts["vllm:prefix_cache_queries_total"] - counts["vllm:prefix_cache_hits_total"]
    except KeyError as error:
        raise CarpoolError(f"the LLM server counts no {error}; it must be a vLLM") from error
