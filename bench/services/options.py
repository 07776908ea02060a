"""The options of the benchmarks of services and answers. A docstring is its command's help."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import msgspec
import typer

from bench.core.options import DataOption, NlistOption, ServiceOptions

SecondsOption = Annotated[
    float,
    typer.Option("--seconds", min=0.1, help="How long each side or condition is measured."),
]
WarmUpOption = Annotated[
    float,
    typer.Option(
        "--warm-up", min=0, help="Seconds of load before that are not measured: Java compiles."
    ),
]


class CorpusOptions(ServiceOptions, frozen=True, kw_only=True):
    """Options of claims, traffic and answers."""

    data: DataOption = None
    index: Annotated[
        Path | None,
        typer.Option(
            "--index",
            metavar="DIR",
            help="The index, built there from the precomputed vectors if absent. Default: under "
            "--work.",
            show_default=False,
        ),
    ] = None
    nlist: NlistOption = 100
    model: Annotated[
        str | None,
        typer.Option(
            "--model",
            help="Embedding model, a name or a folder: the one of the precomputed vectors. "
            "Default: the services'.",
            show_default=False,
        ),
    ] = None
    limit: Annotated[
        int | None,
        typer.Option("--limit", min=1, help="Only the first of the questions.", show_default=False),
    ] = None
    seed: Annotated[int, typer.Option("--seed", help="Seed of clusters and arrivals.")] = 0


class ClaimsOptions(CorpusOptions, frozen=True, kw_only=True):
    """Do the services find what an exact search finds, and is it evidence?

    Publishes FEVER's claims and compares each retrieval with FAISS IVF-Flat in memory: same
    vectors, same centroids, same nprobe, and the query vectors that the grouper used. Counts how
    often an evidence page is among the first five, compared with an exact search.

    Ends with 1 when a promise is broken: a claim lost or retrieved twice, other ids where scores
    differ by 0.00001 or more, evidence over one point below exact search.

    Example:  carpool bench claims --data DATA --json claims.json
    """


class TrafficOptions(CorpusOptions, frozen=True, kw_only=True):
    """How fast, and with how many bytes from disk, is a stream of questions searched?

    Publishes HotpotQA's questions twice: as text, which the grouper embeds, then as vectors. The
    load is open: a question is sent at its time whether or not earlier ones were answered, and its
    total counts from then until its retrieval is read. Reports p50 and p99 of every stage over all
    questions, the share of clusters found in memory, bytes read a query, and memory.

    Ends with 1 when a promise is broken: a question lost or retrieved twice, or memory over its
    bounds.

    Example:  carpool bench traffic --data DATA --text-rate 0 --vector-rate 500
    """

    text_rate_per_s: Annotated[
        float,
        typer.Option(
            "--text-rate", min=0, help="Questions a second as text; 0 leaves this run out."
        ),
    ] = 50.0
    vector_rate_per_s: Annotated[
        float,
        typer.Option(
            "--vector-rate", min=0, help="Questions a second as vectors; 0 leaves this run out."
        ),
    ] = 200.0
    budget_share: Annotated[
        float,
        typer.Option(
            "--budget-share",
            min=0.001,
            max=10,
            help="The searcher's budget as a share of all clusters' bytes.",
        ),
    ] = 0.4


class OverheadOptions(ServiceOptions, frozen=True, kw_only=True):
    """What does the way through the services cost: exactly once and at least once?

    Starts Apache Kafka from KAFKA_HOME, one broker or three, the services on a small index, and
    sends questions with vectors at a steady rate. No model embeds and none answers, so what is left
    is the way through three services and four topics. A question's time counts from when it was due
    until its committed answer is read.

    The baseline on the same brokers: bare hops, three processes in a chain that only copy records
    from topic to topic, with plain clients, the same settings and the same commit interval. The
    table shows Carpool over bare hops.

    Ends with 1 when a promise is broken: a percentile over its bound, a question without an answer
    or with two.

    Example:  carpool bench overhead --json overhead.json
    """

    rate_per_s: Annotated[float, typer.Option("--rate", min=0.1, help="Questions a second.")] = (
        200.0
    )
    seconds: SecondsOption = 60.0
    warm_up_s: WarmUpOption = 90.0
    contestants: Annotated[
        list[str],
        typer.Option(
            "--contestant",
            metavar="NAME",
            help="Only this one: exactly-once-1, exactly-once-3 or at-least-once-1; may be "
            "repeated.",
            show_default=False,
        ),
    ] = msgspec.field(default_factory=list)


class PrioritiesOptions(ServiceOptions, frozen=True, kw_only=True):
    """Do batch questions, or a tenant that asks a lot, make others wait?

    The whole way through grouper, searcher and generator without models, over a made-up index, on
    an Apache Kafka from KAFKA_HOME. Interactive questions are asked alone, then
    with --batch questions of the class batch queued before them; the questions of a quiet tenant
    alone, then with those of a loud tenant.

    Ends with 1 when a promise is broken: interactive p99 over twice, the quiet tenant's p99 over
    one and a half times what it is alone, a question without its one answer, or a backlog that was
    empty before the end.

    Example:  KAFKA_HOME=kafka carpool bench priorities --seconds 30 --json priorities.json
    """

    batch: Annotated[
        int, typer.Option("--batch", min=1, help="Batch questions that are queued first.")
    ] = 20_000
    rate_per_s: Annotated[
        float, typer.Option("--rate", min=0.1, help="Interactive questions a second.")
    ] = 20.0
    tenant_rate_per_s: Annotated[
        float,
        typer.Option(
            "--tenant-rate", min=1, help="Questions a second of both tenants; nine tenths are loud."
        ),
    ] = 200.0
    seconds: SecondsOption = 20.0
    warm_up_s: WarmUpOption = 60.0


class AnswersOptions(CorpusOptions, frozen=True, kw_only=True):
    """Are the answers right, and what do they cost?

    Asks 100 questions whose answers are known through grouper, searcher and generator, with a vLLM
    that the run starts. Counts where a gold answer is: in the answer, in the answer or its quote.
    Counts the share of output tokens that are not the text. Shares come with Wilson's 95 %
    intervals.

    Ends with 1 when a promise is broken: a question without one terminal answer, less than 0.75
    with gold in answer or quote, more than 15 % of tokens beyond the text.

    Example:  carpool bench answers --json answers.json
    """

    llm: Annotated[
        str | None,
        typer.Option(
            "--llm",
            metavar="DIR",
            help="Folder of the model that vLLM serves. Default: vllm.model_dir.",
            show_default=False,
        ),
    ] = None
