"""The commands that run one service: `carpool grouper`, `searcher`, `generator`, `indexer`."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

import typer

from carpool.intakes import group_intake, query_intake, retrieval_intake
from carpool.loop.priority.intake_queues import Intake
from carpool.loop.stage import R
from cli.options import Sources, spread
from cli.settings import CarpoolSettings, load
from schemas.answer import Stage as StageName
from schemas.topics import (
    ANSWERS,
    CANCELS,
    DOCUMENTS,
    GROUPS,
    QUERIES,
    RETRIEVAL_DRAFTS,
    RETRIEVALS,
    Topic,
    read_with,
)

# The services' packages are imported by the commands that need them.
if TYPE_CHECKING:
    from carpool.clock import Clock
    from carpool.loop.stage import Stage
    from carpool.telemetry.metrics import Metrics
INPUTS: dict[str, Topic] = {
    "grouper": QUERIES,
    "searcher": GROUPS,
    "generator": RETRIEVALS,
    "indexer": DOCUMENTS,
}
"""The services in the order of the work of a question, and that of documents; and the first topic
of each: `read_with` has the others.
"""

IndexOption = typer.Option(None, "--index", metavar="DIR", help="Folder of the index.")
PortOption = typer.Option(
    None, "--port", help="Port of /healthz, /readyz, /metrics; 0: a free one."
)


@spread
def grouper(
    index: str | None = IndexOption, port: int | None = PortOption, *, sources: Sources
) -> None:
    """Run the grouper: it embeds queries, finds their clusters, and writes them in groups.

    Reads rag.queries.v1 and rag.retries.v1, writes rag.groups.v1. SIGTERM finishes the work in
    progress; a second SIGTERM stops immediately.

    \b
    Example:
      carpool grouper --index .carpool/index --set grouper.policy=greedy
    """
    settings = _settings(sources, port, index={"dir": index})
    from grouper.build import build_stage
    from searcher.build import uses_horizon

    _run(
        "grouper",
        settings,
        lambda metrics, clock: build_stage(
            settings.grouper,
            settings.index,
            settings.embedding,
            metrics,
            clock,
            settings.workflow,
            lanes=settings.kafka.lanes,
            needs_horizon=lambda folder: uses_horizon(folder, settings.searcher),
        ),
        settings.grouper.intake_queries_max,
        query_intake(),
    )


@spread
def searcher(
    index: str | None = IndexOption, port: int | None = PortOption, *, sources: Sources
) -> None:
    """Run the searcher: it finds the passages of each query, within a memory budget.

    Reads rag.groups.v1, writes rag.retrievals.v1. SIGTERM finishes the work in progress; a second
    SIGTERM stops immediately.

    \b
    Example:
      carpool searcher --index .carpool/index --set searcher.budget_bytes=1073741824
    """
    settings = _settings(sources, port, index={"dir": index})
    from searcher.in_hand import QUERIES_IN_HAND_MAX
    from searcher.service import build_stage

    _run(
        "searcher",
        settings,
        lambda metrics, clock: build_stage(
            settings.searcher, settings.index, metrics, clock, settings.kafka
        ),
        QUERIES_IN_HAND_MAX,
        group_intake(),
    )


@spread
def generator(
    llm_url: str | None = typer.Option(
        None, "--llm-url", metavar="URL", help="The LLM server's API; several URLs: with commas."
    ),
    model: str | None = typer.Option(None, "--model", help="Its model's name."),
    port: int | None = PortOption,
    *,
    sources: Sources,
) -> None:
    """Run the generator: it sends prompts to the LLM server, and writes the answers.

    Reads rag.retrievals.v1, writes rag.answers.v1 (and pieces to rag.answers.partial.v1). The steps
    of workflows go back to rag.retries.v1 and rag.retrievals.v1. It pauses while the LLM server
    does not answer. SIGTERM finishes the work in progress; a second SIGTERM
    stops immediately.

    \b
    Example:
      carpool generator --llm-url http://127.0.0.1:8000/v1 --model my-model
    """
    settings = _settings(sources, port, llm={"base_url": llm_url, "model": model})
    from carpool.kafka.topic_log import TopicLog
    from generator.dedup.stage import DedupStage
    from generator.service import build_stage

    _run(
        "generator",
        settings,
        lambda metrics, clock: DedupStage(
            build_stage(settings.generator, settings.llm, metrics, clock, settings.workflow),
            TopicLog(settings.kafka, clock, ANSWERS, is_urgent=False),
            settings.generator,
            metrics,
            clock,
            TopicLog(settings.kafka, clock, CANCELS),
            TopicLog(settings.kafka, clock, RETRIEVAL_DRAFTS),
        ),
        settings.generator.prompts_max(len(settings.llm.base_urls())),
        retrieval_intake(),
    )


@spread
def indexer(
    index: str | None = IndexOption,
    model: str | None = typer.Option(
        None, "--model", metavar="NAME|DIR", help="Embedding model: that of the index."
    ),
    port: int | None = PortOption,
    *,
    sources: Sources,
) -> None:
    """Run the indexer: it cuts documents into passages, and embeds them for the searchers.

    Reads rag.documents.v1, writes one record of rag.vectors.v1 for each document: its passages with
    their vectors, that it is deleted, or that it is refused, and why (`carpool dlq list` has these
    documents). Two indexers share the partitions; if one dies, the other goes on within seconds.
    The one that has the first partition saves a base in the folder of the index when the documents
    that no base has take half of searcher.fresh_bytes. Its priority is low: searches go first.
    SIGTERM finishes the work in progress; a second SIGTERM stops immediately.

    \b
    Example:
      carpool indexer --model all-MiniLM-L6-v2
    """
    settings = _settings(sources, port, index={"dir": index}, embedding={"model": model})
    from indexer.open_service import build_service
    from indexer.priority import lower_priority

    lower_priority()
    intake, build_stage = build_service(
        settings.kafka,
        settings.embedding,
        settings.indexer,
        index_dir=Path(settings.index.dir),
        chars_max=settings.generator.passage_chars_max,
        fresh_bytes=settings.searcher.fresh_bytes,
    )
    _run("indexer", settings, build_stage, 1, intake)


def _settings(
    sources: Sources, port: int | None, **flags: dict[str, str | None]
) -> CarpoolSettings:
    return load(CarpoolSettings, sources.given(http={"port": port}, **flags))


def _run(
    name: StageName,
    settings: CarpoolSettings,
    build_stage: Callable[[Metrics, Clock], Stage[R]],
    queries_max: int,
    intake: Intake[R],
) -> None:
    """Runs a service until a stop signal. Raises `CarpoolError`. See `of_all_topics`."""
    from carpool.run_service import of_all_topics, run_service

    run_service(
        name=name,
        intake=of_all_topics(intake, read_with(INPUTS[name]), queries_max),
        build_stage=build_stage,
        kafka=settings.kafka,
        http=settings.http,
        logs=settings.log,
    )
