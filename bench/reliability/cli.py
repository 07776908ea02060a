"""The options of `carpool bench chaos`, `torn`, `rebalance`, `priorities`. Light to import."""

from __future__ import annotations

from typing import Annotated

import msgspec
import typer

from bench.core.command import command
from bench.core.options import WORK, BootstrapOption, JsonOption, ServiceSettingOption, WorkOption


class ChaosOptions(msgspec.Struct, frozen=True, kw_only=True):
    """Options of chaos."""

    queries: Annotated[
        int, typer.Option("--queries", min=1, help="Questions, published over the whole run.")
    ] = 20_000
    kills: Annotated[
        int, typer.Option("--kills", min=1, help="Kills and pauses of services and brokers.")
    ] = 60
    network: Annotated[
        int, typer.Option("--network", min=0, help="Faults of the network before the brokers.")
    ] = 60
    states: Annotated[
        int,
        typer.Option(
            "--states",
            min=0,
            help="Changes of the deployment: a topic's limit lowered and raised, partitions added, "
            "the generator's group deleted, records removed, an LLM server that answers oddly.",
        ),
    ] = 12
    llm_servers: Annotated[
        int,
        typer.Option(
            "--llm-servers",
            min=1,
            max=8,
            help="Stand-ins for the LLM. Of several, one is killed: once for every five --kills, "
            "at least once.",
        ),
    ] = 2
    seed: Annotated[
        int, typer.Option("--seed", help="Seed of victims, kinds and times of faults.")
    ] = 0
    minutes: Annotated[
        float, typer.Option("--minutes", min=0.1, help="Time in which the questions are published.")
    ] = 10.0
    repeat_share: Annotated[
        float,
        typer.Option(
            "--repeat-share",
            min=0.0,
            max=1.0,
            help="Questions with the text of another one: one generation answers both.",
        ),
    ] = 0.2
    cancel_share: Annotated[
        float,
        typer.Option(
            "--cancel-share", min=0.0, max=1.0, help="Questions that their askers withdraw."
        ),
    ] = 0.05
    mutant: Annotated[
        int | None,
        typer.Option(
            "--mutant",
            min=1,
            max=8,
            help="Run services with this defect, under a load and faults of its own.",
        ),
    ] = None
    shipped: Annotated[
        bool,
        typer.Option("--shipped", help="With --mutant: the same run without the defect."),
    ] = False
    work: WorkOption = WORK
    settings: ServiceSettingOption = []
    json_file: JsonOption = None


class TornOptions(msgspec.Struct, frozen=True, kw_only=True):
    """Options of torn."""

    ends: Annotated[
        int, typer.Option("--ends", min=1, help="Ends of transactions that are delayed.")
    ] = 1_000
    kills: Annotated[
        int, typer.Option("--kills", min=0, help="Of these, with a kill of the member.")
    ] = 200
    brokers: Annotated[
        int, typer.Option("--brokers", min=1, help="Independent brokers that run side by side.")
    ] = 4
    work: WorkOption = WORK
    settings: ServiceSettingOption = []
    json_file: JsonOption = None


class RebalanceOptions(msgspec.Struct, frozen=True, kw_only=True):
    """Options of rebalance."""

    rate_per_s: Annotated[
        float, typer.Option("--rate", min=6, help="Queries a second, over six partitions.")
    ] = 240.0
    phase_s: Annotated[
        float,
        typer.Option(
            "--phase", min=1, help="Seconds of load after each change, and of each baseline."
        ),
    ] = 5.0
    rounds: Annotated[
        int, typer.Option("--rounds", min=1, help="Times from one member to three and back.")
    ] = 2
    warm_up: Annotated[
        int,
        typer.Option(
            "--warm-up", min=0, help="Rounds before that are not measured: Java compiles its code."
        ),
    ] = 1
    kills: Annotated[
        int,
        typer.Option(
            "--kills", min=0, help="Members killed inside a transaction that contains offsets."
        ),
    ] = 3
    work: WorkOption = WORK
    settings: ServiceSettingOption = []
    json_file: JsonOption = None


class PrioritiesOptions(msgspec.Struct, frozen=True, kw_only=True):
    """Options of priorities."""

    bootstrap: BootstrapOption = None
    work: WorkOption = WORK
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
    duration_s: Annotated[
        float, typer.Option("--seconds", min=1, help="How long each condition is measured.")
    ] = 20.0
    warm_up_s: Annotated[
        float,
        typer.Option(
            "--warm-up", min=1, help="Seconds of load before that are not measured: Java compiles."
        ),
    ] = 60.0
    settings: ServiceSettingOption = []
    seed: Annotated[int, typer.Option("--seed", min=0, help="Of questions and arrivals.")] = 0
    json_file: JsonOption = None


@command
def chaos(options: ChaosOptions) -> bool:
    """Is anything lost or repeated while services and brokers are killed and paused?

    Starts three brokers of Apache Kafka from KAFKA_HOME, a proxy before each, two of each service
    and two stand-ins for the LLM. Searches read from a slow disk and send drafts, from which the
    stand-ins are warmed. Publishes questions of both classes at a steady rate, and injects
    faults at times drawn from the seed. A process fault is SIGKILL, or SIGSTOP for some seconds, of
    a service or of one broker at a time; what died is started again. A network fault is a delay, a
    cut, a half-open or broken network, the late end of a transaction, or a lost reply. A fault
    counts only with work in flight and answers since the last. For a kill inside an open
    transaction, the member is paused, its coordinator is asked for the transaction's state, and
    only then the member is killed.

    Some ids are asked again, some questions fail at the LLM once, and some always: they become
    dead letters, which are replayed during the run. Some texts are asked again under another id,
    so that one generation answers several questions. Some askers withdraw their question: it has
    one terminal answer, `cancelled` or another.

    At the end every topic is read as a consumer of committed records reads it, and each question is
    looked for in each topic. Ends with 1 when a promise is broken: a question without an answer,
    anything twice, an answer that failed without a cause in the load or that has other passages
    than without faults, offsets that stay behind, LLM calls that no fault explains, fewer faults
    than asked for, or more than 20 minutes.

    --mutant N runs a copy of the services with one known defect of the delivery, and ends with 1
    when no promise about the data was broken. So it shows that this benchmark finds such a defect.

    Example:  carpool bench chaos --queries 20000 --kills 60 --network 60 --json chaos.json
    """
    from bench.reliability.chaos.command import run

    return run(options)


@command
def torn(options: TornOptions) -> bool:
    """Can the delayed end of a transaction end the next one, and lose or repeat work?

    Starts brokers of Apache Kafka from KAFKA_HOME, each behind a proxy, and for each a member that
    copies records exactly once. The proxy holds a request that ends a transaction, cuts the
    connection, and releases the request in the next transaction: after its records, or, with a kill
    of the member, before them. At the end every copy is read as a consumer of committed records
    reads it.

    Ends with 1 when a promise is broken: a record without a copy, or with two.

    Example:  carpool bench torn --ends 1000 --kills 200
    """
    from bench.reliability.torn import run

    return run(options)


@command
def rebalance(options: RebalanceOptions) -> bool:
    """How long do partitions pause when members of a service join, leave and are killed under load?

    Starts one broker of Apache Kafka from KAFKA_HOME and generators without an LLM; all services
    share the same loop. Under a steady load a second and a third member join and leave again, then
    members are killed inside an open transaction that contains offsets. New members have imported
    their modules before they join, so that the rebalance is measured and not the start of an
    interpreter.

    A pause is the longest time between two answers of a partition that stayed with its member, less
    the 99th percentile of that time while no member joins or leaves.

    Ends with 1 when a promise is broken: an answer that is missing or came twice, a pause of 200 ms
    or more, a takeover longer than the session time-out and two seconds.

    Example:  carpool bench rebalance --json rebalance.json
    """
    from bench.reliability.rebalance.command import run

    return run(options)


@command
def priorities(options: PrioritiesOptions) -> bool:
    """Do batch questions, or a tenant that asks a lot, make others wait?

    The whole way through grouper, searcher and generator without models, over a made-up index, on
    an Apache Kafka from KAFKA_HOME where that is set. Interactive questions are asked alone, then
    with --batch questions of the class batch queued before them; the questions of a quiet tenant
    alone, then with those of a loud tenant.

    Ends with 1 when a promise is broken: interactive p99 over twice, the quiet tenant's p99 over
    one and a half times what it is alone, a question without its one answer, or a backlog that was
    empty before the end.

    Example:  KAFKA_HOME=kafka carpool bench priorities --seconds 30 --json priorities.json
    """
    from bench.reliability.priorities import run

    return run(options)
