"""The commands that run one service: `carpool grouper`, `searcher`, `generator`."""

from __future__ import annotations

import typer

from carpool.kafka.settings import KafkaSettings
from carpool.loop.priority.intake_queues import PriorityClass
from cli.options import BootstrapOption, ConfigOption, SetOption, given
from cli.settings import Given, load
from schemas.codec import decode, decode_query
from schemas.group import Group
from schemas.query import Query
from schemas.retrieval import Retrieval
from schemas.topics import BATCH, GROUPS, QUERIES, RETRIEVALS

IndexOption = typer.Option(
    None, "--index", metavar="DIR", help="Folder of the index.", show_default=False
)
PortOption = typer.Option(
    None, "--port", help="Port of /healthz, /readyz, /metrics; 0: a free one.", show_default=False
)


def grouper(
    bootstrap: BootstrapOption = None,
    index: str | None = IndexOption,
    port: int | None = PortOption,
    config: ConfigOption = None,
    assignments: SetOption = None,
) -> None:
    """Run the grouper: queries that share clusters into groups, in order.

    Reads rag.queries.v1, writes rag.groups.v1. SIGTERM finishes the work in progress; a second
    SIGTERM stops immediately.


    \b
    Example:
      carpool grouper --index .carpool/index --set grouper.policy=agglomerative
    """
    run_grouper(
        given(
            config,
            assignments,
            kafka={"bootstrap": bootstrap},
            index={"dir": index},
            http={"port": port},
        )
    )


def searcher(
    bootstrap: BootstrapOption = None,
    index: str | None = IndexOption,
    port: int | None = PortOption,
    config: ConfigOption = None,
    assignments: SetOption = None,
) -> None:
    """Run the searcher: clusters from disk within a memory budget, a result for each query.

    Reads rag.groups.v1, writes rag.retrievals.v1. SIGTERM finishes the work in progress; a second
    SIGTERM stops immediately.

    \b
    Example:
      carpool searcher --index .carpool/index --set searcher.budget_bytes=1073741824
    """
    run_searcher(
        given(
            config,
            assignments,
            kafka={"bootstrap": bootstrap},
            index={"dir": index},
            http={"port": port},
        )
    )


def generator(
    bootstrap: BootstrapOption = None,
    llm_url: str | None = typer.Option(
        None, "--llm-url", metavar="URL", help="The LLM server's API.", show_default=False
    ),
    model: str | None = typer.Option(None, "--model", help="Its model's name.", show_default=False),
    port: int | None = PortOption,
    config: ConfigOption = None,
    assignments: SetOption = None,
) -> None:
    """Run the generator: prompts to the LLM server, cited answers to the log.

    Reads rag.retrievals.v1, writes rag.answers.v1 (and pieces to rag.answers.partial.v1). It pauses
    while the LLM server does not answer. SIGTERM finishes the work in progress; a second SIGTERM
    stops immediately.

    \b
    Example:
      carpool generator --llm-url http://127.0.0.1:8000/v1 --model my-model
    """
    flags = {"base_url": llm_url, "model": model}
    run_generator(
        given(config, assignments, kafka={"bootstrap": bootstrap}, llm=flags, http={"port": port})
    )


def batch_class(topic: str, kafka: KafkaSettings, queries_max: int) -> tuple[PriorityClass, ...]:
    """Returns the class `batch` of a topic for a service that takes in `queries_max` queries."""
    unfinished_max = max(1, int(kafka.batch_held_share * queries_max))
    return (
        PriorityClass(
            topic=BATCH[topic].name,
            unfinished_max=unfinished_max,
            cpu_wait_us_max=kafka.batch_cpu_wait_us_max,
        ),
    )


def run_grouper(chosen: Given) -> None:
    """Runs the grouper until a stop signal. Raises `CarpoolError`."""
    from carpool.kafka.records import Message
    from carpool.loop.priority.intake_queues import Intake
    from carpool.run_service import run_service
    from cli.all_settings import CarpoolSettings
    from grouper.service import build_stage

    settings = load(CarpoolSettings, chosen)

    def decode_message(message: Message) -> Query:
        return decode_query(message.value, message.headers, message.source)

    run_service(
        name="grouper",
        intake=Intake(
            topic=QUERIES.name,
            decode=decode_message,
            bad_input="refuse",
            weight=settings.kafka.interactive_weight,
            extra_classes=batch_class(
                QUERIES.name, settings.kafka, settings.grouper.intake_queries_max
            ),
        ),
        build_stage=lambda metrics, clock: build_stage(
            settings.grouper, settings.index, settings.embedding, metrics, clock
        ),
        kafka=settings.kafka,
        http=settings.http,
        logs=settings.log,
    )


def run_searcher(chosen: Given) -> None:
    """Runs the searcher until a stop signal. Raises `CarpoolError`."""
    from carpool.loop.priority.intake_queues import Intake
    from carpool.run_service import run_service
    from cli.all_settings import CarpoolSettings
    from searcher.service import build_stage

    settings = load(CarpoolSettings, chosen)

    run_service(
        name="searcher",
        intake=Intake(
            topic=GROUPS.name,
            decode=lambda message: decode(Group, message.value, message.headers),
            bad_input="stop",
            weight=settings.kafka.interactive_weight,
            extra_classes=batch_class(
                GROUPS.name, settings.kafka, settings.searcher.queries_in_hand_max
            ),
            parts=lambda group: len(group.queries),
        ),
        build_stage=lambda metrics, clock: build_stage(
            settings.searcher, settings.index, metrics, clock
        ),
        kafka=settings.kafka,
        http=settings.http,
        logs=settings.log,
    )


def run_generator(chosen: Given) -> None:
    """Runs the generator until a stop signal. Raises `CarpoolError`."""
    from carpool.loop.priority.intake_queues import Intake
    from carpool.run_service import run_service
    from cli.all_settings import CarpoolSettings
    from generator.dedup.answers_log import answers_log
    from generator.dedup.stage import DedupStage
    from generator.service import build_stage

    settings = load(CarpoolSettings, chosen)

    run_service(
        name="generator",
        intake=Intake(
            topic=RETRIEVALS.name,
            decode=lambda message: decode(Retrieval, message.value, message.headers),
            bad_input="stop",
            weight=settings.kafka.interactive_weight,
            extra_classes=batch_class(
                RETRIEVALS.name, settings.kafka, settings.generator.intake_records_max
            ),
        ),
        build_stage=lambda metrics, clock: DedupStage(
            build_stage(settings.generator, settings.llm, metrics, clock),
            answers_log(settings.kafka, clock),
            settings.generator,
            metrics,
            clock,
        ),
        kafka=settings.kafka,
        http=settings.http,
        logs=settings.log,
    )
