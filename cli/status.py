"""`carpool status`: are the services ready, are the topics there, how much waits where?"""

from __future__ import annotations

from pathlib import Path

import msgspec
import typer
from rich.table import Table
from rich.text import Text

from carpool.errors import CarpoolError
from cli.console import output, print_json
from cli.http import Labels, get, missing_of, parse_metrics
from cli.options import BesideOption, ConfigOption, JsonOption, SetOption, given
from cli.runfile import RunFile
from cli.settings import ClientSide, load_beside
from schemas.topics import GROUPS, QUERIES, RETRIEVALS

SERVICES = {"grouper": QUERIES.name, "searcher": GROUPS.name, "generator": RETRIEVALS.name}
"""Each service, and the topic that it reads."""

NOT_READY_STATUS = 1


class ServiceStatus(msgspec.Struct, frozen=True, kw_only=True):
    """One service. `lag_records`: what waits for it, counted from its position; None where it does not answer."""

    name: str
    address: str
    state: str
    missing: list[str]
    reads: str
    lag_records: int | None = None
    in_flight: int | None = None
    consumed: int | None = None
    answers: dict[str, int] = {}
    dead_letters: int | None = None


class Status(msgspec.Struct, frozen=True, kw_only=True):
    """Everything at a glance. `topics_missing`: None when no broker answers, and `broker_error` says why."""

    is_ready: bool
    bootstrap: str
    broker_error: str | None
    topics_missing: list[str] | None
    services: list[ServiceStatus]


def status(
    urls: list[str] | None = typer.Option(
        None,
        "--url",
        "-u",
        metavar="NAME=HOST:PORT",
        help="A service's HTTP address. Default: those of `carpool up`, or its default ports.",
        show_default=False,
    ),
    bootstrap: BesideOption = None,
    as_json: JsonOption = False,
    config: ConfigOption = None,
    assignments: SetOption = None,
) -> None:
    """Show which services are ready, what each still lacks, and how many records wait for it.

    Exit status 1: something is not ready. Without `carpool up` on this machine, say where the services are with --url.

    \b
    Examples:
      carpool status
      carpool status --json
      carpool status --url grouper=10.0.0.5:9464 --url searcher=10.0.0.6:9464
    """
    settings = load_beside(given(config, assignments, kafka={"bootstrap": bootstrap}))
    addresses = _addresses(settings, urls or [])
    services = [_service(name, address) for name, address in addresses.items()]
    missing, broker_error = _topics(settings)
    found = Status(
        is_ready=all(service.state == "ready" for service in services) and missing == [],
        bootstrap=settings.kafka.bootstrap,
        broker_error=broker_error,
        topics_missing=missing,
        services=services,
    )
    if as_json:
        print_json(found)
    else:
        _print(found)
    if not found.is_ready:
        raise typer.Exit(NOT_READY_STATUS)


def _addresses(settings: ClientSide, urls: list[str]) -> dict[str, str]:
    if urls:
        pairs = [url.partition("=") for url in urls]
        for name, equals, address in pairs:
            if not equals or name not in SERVICES or ":" not in address:
                raise typer.BadParameter(f"--url {name}{equals}{address}: write one of {', '.join(SERVICES)}=HOST:PORT")
        return {name: address for name, _, address in pairs}
    run = RunFile(Path(settings.up.state_dir)).read()
    if run is not None:
        return run.http
    up = settings.up
    return dict(
        zip(
            SERVICES,
            (f"127.0.0.1:{port}" for port in (up.grouper_port, up.searcher_port, up.generator_port)),
            strict=True,
        )
    )


def _service(name: str, address: str) -> ServiceStatus:
    reads = SERVICES[name]
    code, body = get(f"http://{address}/readyz")
    if code == 0:
        return ServiceStatus(name=name, address=address, state="down", missing=["nothing answers there"], reads=reads)
    page_code, page = get(f"http://{address}/metrics")
    samples = parse_metrics(page.decode(errors="replace")) if page_code == 200 else {}
    return ServiceStatus(
        name=name,
        address=address,
        state="ready" if code == 200 else "not ready",
        missing=[] if code == 200 else missing_of(body),
        reads=reads,
        lag_records=_total(samples, "carpool_lag_records"),
        in_flight=_total(samples, "carpool_units_in_flight"),
        consumed=_total(samples, "carpool_records_consumed_total"),
        answers=_by_label(samples, "carpool_answers_total", "status"),
        dead_letters=_total(samples, "carpool_dead_letters_total"),
    )


def _total(samples: dict[tuple[str, Labels], float], name: str) -> int:
    return int(sum(value for (sample, _), value in samples.items() if sample == name))


def _by_label(samples: dict[tuple[str, Labels], float], name: str, label: str) -> dict[str, int]:
    sums: dict[str, int] = {}
    for (sample, labels), value in samples.items():
        if sample == name:
            key = dict(labels).get(label, "")
            sums[key] = sums.get(key, 0) + int(value)
    return sums


def _topics(settings: ClientSide) -> tuple[list[str] | None, str | None]:
    from carpool.kafka.admin import describe_topics

    try:
        return [state.topic.name for state in describe_topics(settings.kafka) if state.partitions == 0], None
    except CarpoolError as error:
        return None, str(error)


def _print(found: Status) -> None:
    console = output()
    if found.broker_error is not None:
        console.print(Text(found.broker_error, style="red"), soft_wrap=True)
    elif found.topics_missing:
        console.print(
            Text(f"missing topics: {', '.join(found.topics_missing)}; `carpool topics create` makes them", style="red")
        )
    else:
        console.print(Text(f"brokers at {found.bootstrap}: all topics are there", style="green"))
    table = Table(box=None, padding=(0, 2, 0, 0))
    for column in ("service", "state", "waiting", "in flight", "taken in", "refused", "answers", "address"):
        table.add_column(column, header_style="dim")
    for service in found.services:
        style = {"ready": "green", "down": "red"}.get(service.state, "yellow")
        counts = (service.lag_records, service.in_flight, service.consumed, service.dead_letters)
        table.add_row(
            service.name,
            Text(service.state, style=style),
            *("" if count is None else f"{count:,}" for count in counts),
            ", ".join(f"{count:,} {name}" for name, count in sorted(service.answers.items())),
            Text(service.address, style="dim"),
        )
    console.print(table)
    for service in found.services:
        for missing in service.missing:
            console.print(Text(f"{service.name}: {missing}", style="yellow"), soft_wrap=True)
