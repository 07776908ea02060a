"""The spans of a request to the model, by OpenTelemetry's conventions, and of finished steps."""

from __future__ import annotations

from urllib.parse import urlsplit

from carpool.loop.stage import Attribute, Operation
from generator.llm.protocol import LlmFinished
from generator.query_in_progress import QueryInProgress
from schemas.query import Query
from schemas.retrieval import Retrieval


def inference(
    work: QueryInProgress, finished: LlmFinished, now_us: int, *, model: str, url: str
) -> Operation:
    """Returns the span of an answered request. It contains no text, only token counts.

    `model` is the requested one; `url` is the server's, or a name for engines without a server.
    """
    request, progress = work.prepared.request, work.progress
    attributes: dict[str, Attribute] = {
        "gen_ai.operation.name": "chat",
        "gen_ai.provider.name": "vllm",
        "gen_ai.request.model": model,
        "gen_ai.request.stream": True,
        "gen_ai.request.max_tokens": request.max_tokens,
        "gen_ai.request.temperature": request.temperature,
        "gen_ai.response.model": finished.model,
        "gen_ai.response.finish_reasons": (finished.finish_reason,),
        "gen_ai.usage.input_tokens": finished.input_tokens,
        "gen_ai.usage.output_tokens": finished.output_tokens,
        "gen_ai.usage.cache_read.input_tokens": finished.cached_tokens,
    }
    if request.seed is not None:
        attributes["gen_ai.request.seed"] = request.seed
    if progress.sent_us is not None and progress.first_token_us is not None:
        attributes["gen_ai.response.time_to_first_chunk"] = (
            progress.first_token_us - progress.sent_us
        ) / 1_000_000
    server = urlsplit(url)
    if server.hostname is not None:
        attributes["server.address"] = server.hostname
        attributes["server.port"] = server.port or (443 if server.scheme == "https" else 80)
    return Operation(
        name=f"chat {model}",
        started_us=progress.arrived_us if progress.sent_us is None else progress.sent_us,
        ended_us=now_us,
        kind="client",
        attributes=attributes,
    )


def step_span(kind: str, query: Query, started_us: int, ended_us: int) -> Operation:
    """Returns the span of a step of a workflow: `step retrieve` or `step generate`.

    `query` is as it was before the step ended.
    """
    journal = query.journal
    assert journal is not None, "it is a workflow"
    return Operation(
        name=f"step {kind}",
        started_us=started_us,
        ended_us=ended_us,
        attributes={
            "carpool.workflow.program": journal.program,
            "carpool.workflow.round": len(journal.rounds) + 1,
        },
    )


def search_spans(retrieval: Retrieval, searches: int, now_us: int) -> tuple[Operation, ...]:
    """Returns the spans of the searches whose results a retrieval has."""
    journal, ended_us = retrieval.query.journal, retrieval.completed_us or now_us
    began_us = ended_us if journal is None or not journal.began_us else journal.began_us
    return (step_span("retrieve", retrieval.query, began_us, ended_us),) * searches
