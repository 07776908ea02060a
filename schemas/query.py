"""The record of `rag.queries.v1`: a question and its options."""

from __future__ import annotations

from typing import Annotated, Any, Literal

import msgspec

from schemas.document import Corpus, Position
from schemas.errors import Reason, RecordError
from schemas.record import Identifier, Integer, NonNegative, Record
from schemas.workflow import GRAPH_BYTES_MAX, InlineWorkflow, StepResult

QUERY_BYTES_MAX = 256 * 1024
NPROBE_MAX = 65_536
TOP_K_MAX = 100
TopK = Annotated[int, msgspec.Meta(ge=1, le=TOP_K_MAX)]
FETCH_MAX = 20
"""Ids of a query that fetches, at most."""
INSTRUCTIONS_MAX = 32_768
"""Characters of instructions."""
MESSAGES_MAX = 256
"""Messages before the question."""
DocId = Annotated[str, msgspec.Meta(min_length=1, max_length=2_048)]
DEADLINE_MS_MAX = 253_402_300_799_000
"""The end of the year 9999: in microseconds it still fits 64 bits."""
_EPOCH_SECONDS = range(10**9, 10**10)
"""Times from 2001 to 2286 in seconds; as milliseconds they are days in 1970."""


SearchMode = Literal["default", "exact"]
"""What is promised of a search, among the rows of the clusters that the query probes.

default: of 1,000 ids at least 998 are those of an exact search. exact: all are. Scores are exact in
both.
"""


class Generation(Record, frozen=True, kw_only=True):
    """Options of the generated answer; the generator has the defaults.

    `reuse`: whether the answer to an equal prompt may be given again.
    `extractive`: the answer is a sentence of a passage, and no model is asked.
    `model`: the one that must answer; where the generator has another one, the query is refused.
    """

    max_tokens: Annotated[int, msgspec.Meta(ge=1, le=32_768)] | None = None
    temperature: Annotated[float, msgspec.Meta(ge=0, le=2)] | None = None
    seed: Annotated[int, msgspec.Meta(ge=-(2**63), le=2**63 - 1)] | None = None
    template: Identifier | None = None
    reuse: bool = True
    extractive: bool = False
    model: Identifier | None = None


class EarlierMessage(Record, frozen=True, kw_only=True):
    """What was said before the question of a conversation."""

    role: Literal["user", "assistant"]
    text: Annotated[str, msgspec.Meta(max_length=65_536)]


class Query(Record, frozen=True, kw_only=True):
    """A question as it was published.

    Its answer is found by `query_id` (the application's, else one made of the record's place), by
    `source` of the answer (the place that the producer's delivery report names), or by the header
    `correlation_id`, which is copied to the answer. The key of the record is no id.

    At least one of `text`, `vector` and `fetch` is set. `vector` is little-endian float32, base64
    in JSON, and comes with `embedding_model`, the fingerprint of the model that made it. `deadline`
    is in epoch milliseconds. `search_mode`: None is what the searcher is set to. `recall_target`:
    the share of the best passages of the whole index that should be found; the index must be tuned
    for it (`carpool index tune`), else the default nprobe is taken, and the answer says so.
    `priority`: lower is sooner, as in vLLM. `workflow`: the name of a program, or a graph; None:
    one search and one answer. `bound`: the position that a put of documents returned: what is
    searched has these documents; it is waited for, at most five seconds. `fetch`: ids as hits have
    them, of documents or of passages; the answer has these documents, nothing is searched, and no
    model is asked. `instructions`: more of the model's task, for the answer alone. `messages`: the
    conversation before the question, oldest first, for a `workflow` that takes it, as `condense`
    does. `passages`: whether the answer has the texts of what was found.
    """

    query_id: Identifier
    text: Annotated[str, msgspec.Meta(max_length=65_536)] | None = None
    vector: bytes | None = None
    embedding_model: Identifier | None = None
    top_k: TopK | None = None
    nprobe: Annotated[int, msgspec.Meta(ge=1, le=NPROBE_MAX)] | None = None
    search_mode: SearchMode | None = None
    recall_target: Annotated[float, msgspec.Meta(gt=0, le=1)] | None = None
    deadline: Annotated[int, msgspec.Meta(ge=0, le=DEADLINE_MS_MAX)] | None = None
    priority: Annotated[int, msgspec.Meta(ge=-1_000, le=1_000)] = 0
    tenant: Identifier | None = None
    filter: Any = None
    conversation_id: Identifier | None = None
    generation: Generation | None = None
    workflow: Identifier | InlineWorkflow | None = None
    bound: Position | None = None
    fetch: Annotated[tuple[DocId, ...], msgspec.Meta(max_length=FETCH_MAX)] = ()
    instructions: Annotated[str, msgspec.Meta(max_length=INSTRUCTIONS_MAX)] | None = None
    messages: Annotated[tuple[EarlierMessage, ...], msgspec.Meta(max_length=MESSAGES_MAX)] = ()
    passages: bool = False
    journal: Journal | None = None


class Journal(Record, frozen=True, kw_only=True):
    """What a workflow has done so far; written by services alone.

    `root`: the query as it was published. `program`, `version` and `digest` name the program.
    `rounds`: the results of the finished steps, in the order in which the program asked for them;
    steps side by side are one round. `other_searches`: those of the round in progress, without that
    of the query's own text. `asked`: the digests of all of them, as the program asked for them.
    `began_us`: when the step that is in progress began, epoch microseconds. `corpus`: what its
    first search has searched; later ones have at least its documents.
    """

    root: Query
    program: str
    version: Integer
    digest: str
    rounds: tuple[tuple[StepResult, ...], ...] = ()
    other_searches: tuple[OtherSearch, ...] = ()
    asked: tuple[str, ...] = ()
    began_us: NonNegative = 0
    corpus: Corpus | None = None


class OtherSearch(Record, frozen=True, kw_only=True):
    """Another search of the round than that of the query's own text."""

    text: str
    top_k: TopK | None = None


def root_of(query: Query) -> Query:
    """Returns the query as it was published, of which this one may be a step."""
    return query if query.journal is None else query.journal.root


def finished_steps(query: Query) -> int:
    """Returns how many steps of a workflow are finished; 0 for a query that has not begun one."""
    return 0 if query.journal is None else sum(map(len, query.journal.rounds))


def results_of(query: Query) -> list[StepResult]:
    """Returns the results of the finished steps of a workflow, in order."""
    rounds = () if query.journal is None else query.journal.rounds
    return [result for round in rounds for result in round]


NOT_YET: tuple[tuple[str, str], ...] = (
    (
        "tenant",
        "tenants are not isolated by this build, so it will not take a query that asks for it",
    ),
    ("filter", "filters are not applied by this build"),
)


def check_query(query: Query, *, is_of_service: bool = False) -> None:
    """Checks what types cannot: there is a question, and every option is supported.

    `is_of_service`: a service published it, so it may have a journal.

    Raises `RecordError` that names the field. The grouper checks dimension and fingerprint.
    """
    if query.fetch:
        if query.text is not None or query.vector is not None or query.workflow is not None:
            why = "comes with a question; send one query that fetches, and one that asks"
            raise _refusal(query, "fetch", why)
    elif query.text is None and query.vector is None:
        raise _refusal(
            query, "text", "a query needs `text` or `vector`: neither is set", "missing_field"
        )
    if query.text is not None:
        if "\x00" in query.text:
            raise _refusal(query, "text", "contains NUL characters; send plain text")
        if not query.text.strip():
            raise _refusal(query, "text", "is blank; send a question")
    if query.vector is not None:
        if not query.vector or len(query.vector) % 4:
            raise _refusal(
                query,
                "vector",
                f"contains {len(query.vector)} bytes, not a whole number of float32 values",
            )
        if query.embedding_model is None:
            why = (
                "a vector needs the fingerprint of the model that made it (`carpool index "
                "stats` shows the index's)"
            )
            raise _refusal(query, "embedding_model", why, "missing_field")
    _check_workflow(query, is_of_service)
    _check_options(query)


def _check_workflow(query: Query, is_of_service: bool) -> None:
    if query.messages and query.workflow is None:
        why = "only programs get them; name a `workflow` that takes them, such as condense"
        raise _refusal(query, "messages", why)
    if query.journal is not None and not is_of_service:
        why = "only services write it; publish the question with `workflow`"
        raise _refusal(query, "journal", why)
    if isinstance(query.workflow, InlineWorkflow):
        size_bytes = len(msgspec.json.encode(query.workflow))
        if size_bytes > GRAPH_BYTES_MAX:
            why = f"the graph has {size_bytes} bytes, and may have {GRAPH_BYTES_MAX}"
            raise _refusal(query, "workflow", why, "too_large")


def _check_options(query: Query) -> None:
    if query.deadline is not None and query.deadline in _EPOCH_SECONDS:
        why = f"{query.deadline} is a time in seconds; send epoch milliseconds: times 1,000"
        raise _refusal(query, "deadline", why)
    if query.nprobe is not None and query.recall_target is not None:
        why = "comes with `nprobe`, which says the same in another way; send one of them"
        raise _refusal(query, "recall_target", why)
    for field, why in NOT_YET:
        if getattr(query, field):
            raise _refusal(query, field, why, "unsupported")


def _refusal(query: Query, field: str, why: str, reason: Reason = "invalid_value") -> RecordError:
    return RecordError(reason, f"{field}: {why}", field=f"$.{field}", query_id=query.query_id)
