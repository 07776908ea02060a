"""The options of `carpool bench batches`, `chaos` and `torn`. A docstring is the command's help."""

from __future__ import annotations

from typing import Annotated

from typer import Option

from bench.core.options import ServiceOptions


class ChaosOptions(ServiceOptions, frozen=True, kw_only=True):
    """Is anything lost or repeated while services and brokers are killed and paused?

    Publishes questions of both classes at a steady rate; meanwhile processes are killed and paused,
    the network breaks, and the deployment changes. At the end each question is looked for in each
    topic. docs/reference/bench-rules.md lists load, faults and what is counted.

    Ends with 1 when anything is lost, there twice, or other than without faults, fewer faults than
    asked for were injected, or it took more than twice the time of its questions.

    --mutant N runs a copy of the services with one known defect of the delivery, and ends with 1
    when no promise about the data was broken. So it shows that this benchmark finds such a defect.
    """

    queries: Annotated[int, Option(min=1, help="Questions, over the whole run.")] = 20_000
    kills: Annotated[int, Option(min=1, help="Kills and pauses of services and brokers.")] = 60
    network: Annotated[int, Option(min=0, help="Faults of the network before the brokers.")] = 60
    states: Annotated[
        int,
        Option(
            min=0,
            help="Changes of the deployment: a topic's limit lowered and raised, partitions added, "
            "the generator's group deleted, records removed, an LLM server that answers oddly.",
        ),
    ] = 12
    workflows: Annotated[
        float, Option(min=0, max=1, help="Share of the questions that take steps.")
    ] = 0.1
    documents: Annotated[
        float,
        Option(
            min=0,
            max=1,
            help="Share of the questions that are about documents, which change meanwhile; 0: no "
            "document changes. With documents there are indexers, and no workflows.",
        ),
    ] = 0.0
    seed: Annotated[int, Option(help="Seed of victims, kinds and times of faults.")] = 0
    minutes: Annotated[float, Option(min=0.1, help="How long questions are published.")] = 10.0
    mutant: Annotated[
        int | None, Option(min=1, max=13, help="Services with this defect; a load of its own.")
    ] = None


class TornOptions(ServiceOptions, frozen=True, kw_only=True):
    """Can the delayed end of a transaction end the next one, and lose or repeat work?

    Starts four brokers of Apache Kafka from KAFKA_HOME, and for each a grouper behind a proxy. The
    proxy holds a request that ends a transaction, cuts the connection, and releases the request in
    the next transaction: after its records, or, with a kill of the grouper, before them. At the end
    every group is read as a consumer of committed records reads it.

    Ends with 1 when a question is in no group, or in two.
    """

    ends: Annotated[int, Option(min=1, help="Ends of transactions that are delayed.")] = 1_000
    kills: Annotated[int, Option(min=0, help="Of these, with a kill of the grouper.")] = 200


class BatchesOptions(ServiceOptions, frozen=True, kw_only=True):
    """Is each line of a batch answered once while its services and its runner are killed?

    Measures the rate first, without faults, against plain records. Then runs a batch of --lines,
    half of them by Zipf's law, with a stand-in for an LLM that answers at once: services and runner
    are killed at random times, and one runner goes on in a folder that has nothing but the input.
    At the end the ordered output is compared with the input.

    Ends with 1 when a line is missing, twice or of another question, more calls of the LLM are
    repeated than kills of the generator may repeat, or the rate is below .8 of plain records.
    """

    lines: Annotated[int, Option(min=1, help="Of the batch with faults.")] = 100_000
    rate_lines: Annotated[int, Option(min=1, help="Of each measurement of the rate.")] = 5_000
    kills: Annotated[int, Option(min=0, help="Of each service.")] = 30
    runner_kills: Annotated[int, Option(min=0, help="Of the runner.")] = 10
    seconds: Annotated[float, Option(min=1, help="Over which kills are spread.")] = 600.0
    seed: Annotated[int, Option(help="Seed of questions, victims and times.")] = 0
