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
from cli.dlq.selecting import Letters, NamedLetters, Places, parse_place
from cli.dlq.showing import (
    count,
    letter_json,
    letter_text,
    letters_table,
    reasons_table,
    topics_table,
)
from cli.exit_codes import FAILED
from cli.options import Beside, JsonOption, spread
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


@app.command("list")
@spread
def list_letters(
    letters: Letters,
    each: Annotated[
        bool,
        typer.Option("--letters", "-l", help="List each letter, with its partition and offset."),
    ] = False,
    marked: Annotated[
        bool, typer.Option("--marked", "-a", help="Also letters that were replayed or dropped.")
    ] = False,
    as_json: JsonOption = False,
    *,
    beside: Beside,
) -> None:
    """Count the dead letters by topic and reason, or list each. Reads the whole topics.

    \b
    Examples:
      carpool dlq list
      carpool dlq list --letters --reason wrong_model --since 1d
      carpool dlq list --json
    """
    kafka = beside.settings().kafka
    # Counts say how many were replayed and dropped.
    meant = letters.selection(kafka, marked=marked or not each)
    if each:
        _list_letters(kafka, meant, letters.limit, as_json=as_json)
        return
    box = DeadLetterBox(kafka, CLOCK)
    names = [name for name in box.topics() if meant.takes_topic(name)]
    marks = box.marks()
    counts = [
        count(name, filter(meant.takes, box.letters(name, marks)), marked=marked) for name in names
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
@spread
def show(
    place: Annotated[
        str,
        typer.Argument(
            metavar="[TOPIC/]PARTITION/OFFSET", help="The letter, as `list -l` shows it."
        ),
    ],
    raw: Annotated[bool, typer.Option("--raw", help="Nothing but the bytes of the value.")] = False,
    as_json: JsonOption = False,
    *,
    beside: Beside,
) -> None:
    """Show one dead letter: the reason, its headers, and its value. Secrets in headers are stars.

    \b
    Examples:
      carpool dlq show 2/17
      carpool dlq show rag.queries.v1.dlq/2/17 --raw > record.bin
    """
    kafka = beside.settings().kafka
    letter = DeadLetterBox(kafka, CLOCK).letter(parse_place(place, kafka))
    if raw:
        sys.stdout.buffer.write(letter.value)
        sys.stdout.flush()
    elif as_json:
        print_json(letter_json(letter))
    else:
        output().print(letter_text(letter), soft_wrap=True)


@app.command()
@spread
def replay(
    letters: NamedLetters,
    places: Places = None,
    again: Annotated[
        bool, typer.Option("--again", help="Also letters that were replayed or dropped before.")
    ] = False,
    deadline_s: Annotated[
        float | None,
        typer.Option(
            "--deadline-s",
            min=0.001,
            help="New deadline, seconds from now. Default: the deadline of the letter; if it has "
            "passed, the answer is `expired`.",
        ),
    ] = None,
    as_json: JsonOption = False,
    *,
    beside: Beside,
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
    kafka = beside.settings().kafka
    meant = letters.checked(kafka, places, marked=again)
    if letters.dry_run:
        _list_letters(kafka, meant, letters.limit, as_json=as_json)
        return
    deadline_ms = None if deadline_s is None else CLOCK.now_us() // 1_000 + int(deadline_s * 1_000)
    sent = _mark(kafka, meant, "replayed", limit=letters.limit, deadline_ms=deadline_ms)
    if as_json:
        print_json({"replayed": sent.marked, "cut": sent.cut})
    else:
        cut = f"; {sent.cut:,} cannot be: they were cut to fit" if sent.cut else ""
        output().print(f"{sent.marked:,} replayed{cut}")
    if not sent.marked:
        raise typer.Exit(FAILED)


@app.command()
@spread
def drop(
    letters: NamedLetters,
    places: Places = None,
    as_json: JsonOption = False,
    *,
    beside: Beside,
) -> None:
    """Mark dead letters as done: they are no longer counted or replayed. Retention removes their
    bytes.

    Exit code 1: no letter is selected.

    \b
    Examples:
      carpool dlq drop 2/17 2/18
      carpool dlq drop --reason not_json --until 1d
    """
    kafka = beside.settings().kafka
    meant = letters.checked(kafka, places)
    if letters.dry_run:
        _list_letters(kafka, meant, letters.limit, as_json=as_json)
        return
    dropped = _mark(kafka, meant, "dropped", limit=letters.limit).marked
    if as_json:
        print_json({"dropped": dropped})
    else:
        output().print(f"{dropped:,} dropped")
    if not dropped:
        raise typer.Exit(FAILED)


def _list_letters(
    kafka: KafkaSettings, meant: Selection, limit: int | None, *, as_json: bool
) -> None:
    box = DeadLetterBox(kafka, CLOCK)
    letters = list(islice(box.selected(meant, box.marks()), limit or LISTED_MAX))
    if as_json:
        print_json([letter_json(letter) for letter in letters])
    else:
        output().print(letters_table(letters, CLOCK.now_us() // 1_000))
    if limit is None and len(letters) == LISTED_MAX:
        people().print(f"the first {LISTED_MAX:,}; --limit shows more", style="dim")


def _mark(
    kafka: KafkaSettings,
    meant: Selection,
    action: Action,
    *,
    limit: int | None,
    deadline_ms: int | None = None,
) -> Sent:
    box = DeadLetterBox(kafka, CLOCK)
    box.topics()  # says what is missing before anything is begun
    producer = LibrdkafkaTransactionalProducer(kafka, kafka.group_of("dlq"))
    try:
        producer.start()
        marks = box.marks()  # after the start, which ended a replay that was running
        letters = islice(box.selected(meant, marks), limit)
        return box.mark(letters, action, producer, deadline_ms=deadline_ms)
    finally:
        producer.close()
