"""The commands of `carpool dlq`."""

from __future__ import annotations

import logging
import sys
from itertools import islice
from typing import Annotated

import structlog
import typer

from carpool.clock import SystemClock
from carpool.dead_letters.box import DeadLetterBox, Sent
from carpool.dead_letters.selection import Selection
from carpool.kafka.librdkafka import LibrdkafkaTransactionalProducer
from carpool.kafka.settings import KafkaSettings
from cli.console import output, people, print_json
from cli.dlq.progress import ProgressLine
from cli.dlq.selecting import (
    FromOption,
    PartitionOption,
    PlacesArgument,
    ReasonOption,
    SinceOption,
    ToOption,
    TopicOption,
    UntilOption,
    parse_place,
    selection,
)
from cli.dlq.showing import (
    count,
    letter_json,
    letter_text,
    letters_table,
    reasons_table,
    topics_table,
)
from cli.exit_codes import FAILED
from cli.options import BesideOption, ConfigOption, JsonOption, SetOption, client_side
from schemas.deadletter import Action

CLOCK = SystemClock()
LISTED_MAX = 1_000
"""Letters that are listed without --limit; they are kept in memory."""

HELP = """Records that could not be used: list them, look at one, replay them, drop them.

A query that the services refuse, or that fails `kafka.attempts_max` times, ends in the dead letters
of its topic (`rag.queries.v1.dlq`): its raw bytes, its headers, and `rag.errors.*` headers that say
why. A letter stays there for 14 days. A letter that was replayed or dropped is marked and skipped.

\b
  carpool dlq list                                        how many, why, how old
  carpool dlq list --letters --reason llm_refused         each of them
  carpool dlq show 2/17                                   one in full
  carpool dlq replay --reason llm_refused --since 2h      try again, after the cause was mended
  carpool dlq drop --reason not_json                      done with
"""

app = typer.Typer(
    name="dlq",
    help=HELP,
    no_args_is_help=True,
    rich_markup_mode=None,
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 120},
)


@app.callback()
def quiet_logs() -> None:
    """Logs warnings only, to standard error."""
    structlog.configure(
        wrapper_class=structlog.make_filtering_bound_logger(logging.WARNING),
        logger_factory=lambda *_: structlog.PrintLogger(sys.stderr),
    )


AllOption = Annotated[
    bool, typer.Option("--all", help="All letters of the topics, if no other option selects any.")
]
DryRunOption = Annotated[bool, typer.Option("--dry-run", help="Only show the selected letters.")]
AgainOption = Annotated[
    bool, typer.Option("--again", help="Also letters that were replayed or dropped before.")
]
LimitOption = Annotated[
    int | None,
    typer.Option("--limit", "-n", min=1, help="Select only the first N letters."),
]


@app.command("list")
def list_letters(
    topics: TopicOption = None,
    partitions: PartitionOption = None,
    reasons: ReasonOption = None,
    since: SinceOption = None,
    until: UntilOption = None,
    each: Annotated[
        bool,
        typer.Option("--letters", "-l", help="List each letter, with its partition and offset."),
    ] = False,
    marked: Annotated[
        bool, typer.Option("--marked", "-a", help="Also letters that were replayed or dropped.")
    ] = False,
    limit: LimitOption = None,
    bootstrap: BesideOption = None,
    as_json: JsonOption = False,
    config: ConfigOption = None,
    assignments: SetOption = None,
) -> None:
    """Count the dead letters by topic and reason, or list each. Reads the whole topics.

    \b
    Examples:
      carpool dlq list
      carpool dlq list --letters --reason wrong_model --since 1d
      carpool dlq list --json
    """
    settings = client_side(bootstrap, config, assignments).kafka
    meant = selection(
        settings,
        topics=topics,
        partitions=partitions,
        reasons=reasons,
        since=since,
        until=until,
        marked=marked or not each,  # counts say how many were replayed and dropped
    )
    if each:
        _list_letters(settings, meant, limit, as_json=as_json)
        return
    box = DeadLetterBox(settings, CLOCK)
    names = [name for name in box.topics() if meant.takes_topic(name)]
    marks = box.marks()
    with ProgressLine() as progress:
        counts = [
            count(name, filter(meant.takes, box.letters(name, marks, progress.read)), marked=marked)
            for name in names
        ]
    if as_json:
        print_json(counts)
        return
    now_ms = CLOCK.now_us() // 1_000
    output().print(topics_table(counts, now_ms))
    for topic in counts:
        if topic.reasons:
            output().print(f"\n{topic.topic}", style="bold")
            output().print(reasons_table(topic, now_ms))


@app.command()
def show(
    place: Annotated[
        str,
        typer.Argument(
            metavar="[TOPIC/]PARTITION/OFFSET", help="The letter, as `list -l` shows it."
        ),
    ],
    as_hex: Annotated[
        bool, typer.Option("--hex", help="The value as hex, also where it is text.")
    ] = False,
    raw: Annotated[bool, typer.Option("--raw", help="Nothing but the bytes of the value.")] = False,
    bootstrap: BesideOption = None,
    as_json: JsonOption = False,
    config: ConfigOption = None,
    assignments: SetOption = None,
) -> None:
    """Show one dead letter: the reason, its headers, and its value. Secrets in headers are stars.

    \b
    Examples:
      carpool dlq show 2/17
      carpool dlq show rag.queries.v1.dlq/2/17 --hex
      carpool dlq show 2/17 --raw > record.bin
    """
    settings = client_side(bootstrap, config, assignments).kafka
    letter = DeadLetterBox(settings, CLOCK).letter(parse_place(place, settings))
    if raw:
        sys.stdout.buffer.write(letter.value)
        sys.stdout.flush()
    elif as_json:
        print_json(letter_json(letter))
    else:
        output().print(letter_text(letter, as_hex=as_hex), soft_wrap=True)


@app.command()
def replay(
    places: PlacesArgument = None,
    topics: TopicOption = None,
    partitions: PartitionOption = None,
    offset_min: FromOption = None,
    offset_max: ToOption = None,
    reasons: ReasonOption = None,
    since: SinceOption = None,
    until: UntilOption = None,
    everything: AllOption = False,
    again: AgainOption = False,
    limit: LimitOption = None,
    deadline_s: Annotated[
        float | None,
        typer.Option(
            "--deadline-s",
            min=0.001,
            help="New deadline, seconds from now. Default: the deadline of the letter; if it has "
            "passed, the answer is `expired`.",
        ),
    ] = None,
    dry_run: DryRunOption = False,
    bootstrap: BesideOption = None,
    as_json: JsonOption = False,
    config: ConfigOption = None,
    assignments: SetOption = None,
) -> None:
    """Write dead letters back to the topic that they came from, without the headers of the failure.

    Each is a new question with its own answer. A letter is replayed once: it is marked in the same
    transaction. A second replay that runs at the same time ends the first. Exit code 1: no letter
    is selected.

    \b
    Examples:
      carpool dlq replay 2/17
      carpool dlq replay --reason llm_refused --since 2h --dry-run
      carpool dlq replay --all --deadline-s 300
    """
    settings = client_side(bootstrap, config, assignments).kafka
    meant = selection(
        settings,
        places=places,
        topics=topics,
        partitions=partitions,
        offset_min=offset_min,
        offset_max=offset_max,
        reasons=reasons,
        since=since,
        until=until,
        marked=again,
    )
    _check_asked(meant, everything)
    deadline_ms = None if deadline_s is None else CLOCK.now_us() // 1_000 + int(deadline_s * 1_000)
    if dry_run:
        _list_letters(settings, meant, limit, as_json=as_json)
        return
    sent = _mark(settings, meant, "replayed", limit=limit, deadline_ms=deadline_ms)
    if as_json:
        print_json({"replayed": sent.marked, "cut": sent.cut})
    else:
        cut = f"; {sent.cut:,} cannot be: they were cut to fit" if sent.cut else ""
        output().print(f"{sent.marked:,} replayed{cut}")
    if not sent.marked:
        raise typer.Exit(FAILED)


@app.command()
def drop(
    places: PlacesArgument = None,
    topics: TopicOption = None,
    partitions: PartitionOption = None,
    offset_min: FromOption = None,
    offset_max: ToOption = None,
    reasons: ReasonOption = None,
    since: SinceOption = None,
    until: UntilOption = None,
    everything: AllOption = False,
    limit: LimitOption = None,
    truncate: Annotated[
        bool,
        typer.Option(
            "--truncate",
            help="Also remove, for good, what is replayed or dropped at the beginning of each "
            "partition.",
        ),
    ] = False,
    dry_run: DryRunOption = False,
    bootstrap: BesideOption = None,
    as_json: JsonOption = False,
    config: ConfigOption = None,
    assignments: SetOption = None,
) -> None:
    """Mark dead letters as done: they are no longer counted or replayed. Retention removes their
    bytes.

    Kafka cannot remove a record from the middle of a partition. --truncate removes, in each
    partition, the marked letters before the first one that is not marked. Exit code 1: no letter is
    selected.

    \b
    Examples:
      carpool dlq drop 2/17 2/18
      carpool dlq drop --reason not_json --until 1d
      carpool dlq drop --all --truncate
    """
    settings = client_side(bootstrap, config, assignments).kafka
    meant = selection(
        settings,
        places=places,
        topics=topics,
        partitions=partitions,
        offset_min=offset_min,
        offset_max=offset_max,
        reasons=reasons,
        since=since,
        until=until,
    )
    _check_asked(meant, everything or truncate)
    if dry_run:
        _list_letters(settings, meant, limit, as_json=as_json)
        return
    is_asked = everything or meant.is_narrow
    dropped = _mark(settings, meant, "dropped", limit=limit).marked if is_asked else 0
    begins = _truncate(DeadLetterBox(settings, CLOCK), meant) if truncate else {}
    if as_json:
        print_json({"dropped": dropped} | ({"begins_at": begins} if truncate else {}))
    else:
        if is_asked:
            output().print(f"{dropped:,} dropped")
        for name, partitions_begin in begins.items():
            for partition, offset in partitions_begin.items():
                output().print(f"{name}/{partition} now begins at {offset}")
    if is_asked and not dropped:
        raise typer.Exit(FAILED)


def _check_asked(meant: Selection, everything: bool) -> None:
    if not (everything or meant.is_narrow):
        raise typer.BadParameter(
            "say which letters: by place, --partition, --reason, --since, ...; or --all of them"
        )


def _list_letters(
    settings: KafkaSettings, meant: Selection, limit: int | None, *, as_json: bool
) -> None:
    box = DeadLetterBox(settings, CLOCK)
    with ProgressLine() as progress:
        letters = list(islice(box.selected(meant, box.marks(), progress.read), limit or LISTED_MAX))
    if as_json:
        print_json([letter_json(letter) for letter in letters])
    else:
        output().print(letters_table(letters, CLOCK.now_us() // 1_000))
    if limit is None and len(letters) == LISTED_MAX:
        people().print(f"the first {LISTED_MAX:,}; --limit shows more", style="dim")


def _mark(
    settings: KafkaSettings,
    meant: Selection,
    action: Action,
    *,
    limit: int | None,
    deadline_ms: int | None = None,
) -> Sent:
    box = DeadLetterBox(settings, CLOCK)
    box.topics()  # says what is missing before anything is begun
    producer = LibrdkafkaTransactionalProducer(settings, settings.group_of("dlq"))
    try:
        producer.start()
        marks = box.marks()  # after the start, which ended a replay that was running
        with ProgressLine() as progress:
            letters = islice(box.selected(meant, marks, progress.read), limit)
            return box.mark(letters, action, producer, deadline_ms=deadline_ms, done=progress.done)
    finally:
        producer.close()


def _truncate(box: DeadLetterBox, meant: Selection) -> dict[str, dict[int, int]]:
    marks = box.marks()
    begins = {name: box.truncate(name, marks) for name in box.topics() if meant.takes_topic(name)}
    return {name: partitions for name, partitions in begins.items() if partitions}
