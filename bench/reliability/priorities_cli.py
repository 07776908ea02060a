"""The options of `carpool bench priorities`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from bench.core.options import JsonOption


def priorities(
    bootstrap: Annotated[
        str | None,
        typer.Option(
            "--bootstrap",
            metavar="HOST:PORT",
            help="Brokers to use; no other services of Carpool may run on them. Default: an Apache "
            "Kafka of its own where KAFKA_HOME names one, else an embedded broker.",
            show_default=False,
        ),
    ] = None,
    work: Annotated[
        Path, typer.Option("--work", metavar="DIR", help="Folder for index, logs and broker.")
    ] = Path(".carpool/bench"),
    batch: Annotated[
        int, typer.Option("--batch", min=1, help="Batch questions that are queued at once.")
    ] = 20_000,
    rate: Annotated[
        float, typer.Option("--rate", min=0.1, help="Interactive questions a second.")
    ] = 20.0,
    tenant_rate: Annotated[
        float, typer.Option("--tenant-rate", min=1, help="Questions a second of all tenants.")
    ] = 200.0,
    loud_share: Annotated[
        float,
        typer.Option("--loud-share", min=0.01, max=0.99, help="What of them one tenant asks."),
    ] = 0.9,
    seconds: Annotated[
        float, typer.Option("--seconds", min=1, help="How long each condition is measured.")
    ] = 20.0,
    warm_up: Annotated[
        float,
        typer.Option(
            "--warm-up",
            min=1,
            help="Seconds for which both classes are asked first: a JVM compiles for its first "
            "minute.",
        ),
    ] = 60.0,
    settings: Annotated[
        list[str] | None,
        typer.Option(
            "--set",
            metavar="SECTION.NAME=VALUE",
            help="A setting of the services; may be repeated.",
            show_default=False,
        ),
    ] = None,
    seed: Annotated[int, typer.Option("--seed", min=0, help="Of questions and arrivals.")] = 0,
    json_file: JsonOption = None,
) -> None:
    """Do batch questions, or a tenant that asks a lot, make others wait?

    Whole way through grouper, searcher and generator, with hashed words for embeddings and no
    language model, over a made-up index. Interactive questions are asked alone, then with --batch
    questions of the class batch queued before them; a tenant's questions alone, then beside another
    tenant that asks --loud-share of all.

    Ends with 1 when a promise is broken: interactive p99 over twice, other tenants' p99 over one
    and a half times what it is alone, a question without its one answer, or a backlog that was gone
    before the end.

    Example:  KAFKA_HOME=kafka carpool bench priorities --seconds 30 --json priorities.json
    """
    import sys

    from bench.core.report import write_report
    from bench.reliability import priorities as bench
    from bench.services.commands import parse_settings

    options = bench.PrioritiesOptions(
        batch=batch,
        rate_per_s=rate,
        tenant_rate_per_s=tenant_rate,
        loud_share=loud_share,
        duration_s=seconds,
        warm_up_s=warm_up,
        seed=seed,
    )

    def tell(what: str, done: int, of: int) -> None:
        if sys.stderr.isatty():
            sys.stderr.write(f"\r{what}: {done} of {of} back" + " " * 20)

    index = bench.made_up_index((work / "priorities-index").resolve())
    report = bench.run_priorities(
        options,
        bootstrap,
        index,
        (work / "priorities").resolve(),
        parse_settings(settings or ()),
        tell,
    )
    for line in bench.lines(report.results):
        typer.echo(line, err=str(json_file) == "-")
    if json_file is not None:
        write_report(report, json_file)
    if not all(report.promises.values()):
        raise typer.Exit(1)
