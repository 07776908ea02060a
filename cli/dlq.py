"""`carpool dlq`: list, show, replay and drop the records that could not be used."""

from __future__ import annotations

import re
import sys
from dataclasses import dataclass
from datetime import UTC, datetime
from itertools import islice
from typing import Annotated

import typer

from carpool.clock import SystemClock
from carpool.dead_letters.box import DeadLetterBox
from carpool.dead_letters.letter import Place, Selection
from carpool.errors import ConfigError
from carpool.kafka.librdkafka import LibrdkafkaTransactionalProducer
from carpool.kafka.settings import KafkaSettings
from cli.console import output, people, print_json, quiet_logs, show_result
from cli.exit_codes import FAILED
from cli.letters import count, letter_json, letter_text, letters_table, reasons_table, topics_table
from cli.options import ClientArgs, JsonOption, command_group, logical_topic, parse_place, spread
from schemas.deadletter import Action
from schemas.topics import DEAD_LETTER_SUFFIX, QUERIES_DEAD

CLOCK = SystemClock()
LISTED_MAX = 1_000
"""Letters that are listed without --limit; they are kept in memory."""
AGE = re.compile(r"(\d{1,6})([smhd])")
UNIT_S = {"s": 1, "m": 60, "h": 3_600, "d": 86_400}

app = command_group(
    "dlq",
    """Records that could not be used: list them, look at one, replay them, drop them.

A query that the services refuse, or that fails `kafka.attempts_max` times, ends in the dead letters
of its topic (`rag.queries.v1.dlq`): its raw bytes, its headers, and `rag.errors.*` headers that say
why; so does a document (`rag.documents.v1.dlq`). A letter stays there for 14 days. A letter that
was replayed or dropped is marked and skipped.

\b
  carpool dlq list                                        how many, why, how old
  carpool dlq list --letters --reason llm_refused         each of them
  carpool dlq show 2/17                                   one in full
  carpool dlq replay --reason llm_refused --since 2h      try again, after the cause was mended
  carpool dlq drop --reason not_json                      done with
""",
)
app.callback()(quiet_logs)


@dataclass(frozen=True, kw_only=True)
class Letters:
    """Which letters: of these topics, for these reasons, of this age."""

    topics: Annotated[
        list[str] | None,
        typer.Option(
            "--topic", "-t", help="Dead-letter topic, or the topic it is for. Default: all."
        ),
    ] = None
    reasons: Annotated[
        list[str] | None,
        typer.Option("--reason", "-r", help="Only for this reason, as `list` shows it."),
    ] = None
    since: Annotated[
        str | None,
        typer.Option(metavar="AGE|TIME", help="Not older than 30m, 2h, 3d; or 2026-11-22T10:00Z."),
    ] = None
    until: Annotated[str | None, typer.Option(metavar="AGE|TIME", help="Not newer than that.")] = (
        None
    )
    limit: Annotated[
        int | None, typer.Option("--limit", "-n", min=1, help="Select only the first N letters.")
    ] = None

    def selection(
        self, kafka: KafkaSettings, places: list[str] | None = None, *, marked: bool = False
    ) -> Selection:
        """Returns the selection; ages count from now. Raises `ConfigError`."""
        now_us = CLOCK.now_us()
        return Selection(
            topics=frozenset(dead_letter_topic(topic, kafka) for topic in self.topics or ()),
            places=frozenset(place_of_letter(place, kafka) for place in places or ()),
            reasons=frozenset(self.reasons or ()),
            since_ms=None if self.since is None else parse_time_ms(self.since, now_us),
            until_ms=None if self.until is None else parse_time_ms(self.until, now_us),
            marked=marked,
        )


@dataclass(frozen=True, kw_only=True)
class NamedLetters(Letters):
    """Letters that something is done with: it must be said which, or that all are meant."""

    places: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="[TOPIC/]PARTITION/OFFSET...",
            help="Letters by their place, as `list --letters` shows it. Without a topic: "
            f"{QUERIES_DEAD.name}.",
        ),
    ] = None
    everything: Annotated[
        bool,
        typer.Option("--all", help="All letters of the topics, if no other option selects any."),
    ] = False
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Only show the selected letters.")] = (
        False
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
    sources: ClientArgs,
) -> None:
    """Count the dead letters by topic and reason, or list each. Reads the whole topics.

    \b
    Examples:
      carpool dlq list
      carpool dlq list --letters --reason wrong_model --since 1d
      carpool dlq list --json
    """
    kafka = sources.settings().kafka
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
    sources: ClientArgs,
) -> None:
    """Show one dead letter: the reason, its headers, and its value. Secrets in headers are stars.

    \b
    Examples:
      carpool dlq show 2/17
      carpool dlq show rag.queries.v1.dlq/2/17 --raw > record.bin
    """
    kafka = sources.settings().kafka
    letter = DeadLetterBox(kafka, CLOCK).letter(place_of_letter(place, kafka))
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
    again: Annotated[
        bool, typer.Option("--again", help="Also letters that were replayed or dropped before.")
    ] = False,
    deadline_s: Annotated[
        float | None,
        typer.Option(
            min=0.001,
            help="New deadline, seconds from now. Default: the deadline of the letter; if it has "
            "passed, the answer is `expired`.",
        ),
    ] = None,
    as_json: JsonOption = False,
    *,
    sources: ClientArgs,
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
    deadline_ms = None if deadline_s is None else CLOCK.now_us() // 1_000 + int(deadline_s * 1_000)
    kafka = sources.settings().kafka
    _mark(kafka, letters, "replayed", again=again, deadline_ms=deadline_ms, as_json=as_json)


@app.command()
@spread
def drop(letters: NamedLetters, as_json: JsonOption = False, *, sources: ClientArgs) -> None:
    """Mark dead letters as done: they are no longer counted or replayed. Retention removes their
    bytes.

    Exit code 1: no letter is selected.

    \b
    Examples:
      carpool dlq drop 2/17 2/18
      carpool dlq drop --reason not_json --until 1d
    """
    _mark(sources.settings().kafka, letters, "dropped", as_json=as_json)


def _list_letters(
    kafka: KafkaSettings, meant: Selection, limit: int | None, *, as_json: bool
) -> None:
    box = DeadLetterBox(kafka, CLOCK)
    letters = list(islice(box.selected(meant, box.marks()), limit or LISTED_MAX))
    shown = letters_table(letters, CLOCK.now_us() // 1_000)
    show_result([letter_json(letter) for letter in letters], shown, as_json=as_json)
    if limit is None and len(letters) == LISTED_MAX:
        people().print(f"the first {LISTED_MAX:,}; --limit shows more", style="dim")


def _mark(
    kafka: KafkaSettings,
    letters: NamedLetters,
    action: Action,
    *,
    again: bool = False,
    deadline_ms: int | None = None,
    as_json: bool,
) -> None:
    """Replays or drops letters, or lists them; says how many. Exits with 1 where there is none."""
    meant = letters.selection(kafka, letters.places, marked=again)
    if not (letters.everything or meant.is_narrow):
        raise ConfigError("say which letters: by place, --reason, --since, ...; or --all of them")
    if letters.dry_run:
        _list_letters(kafka, meant, letters.limit, as_json=as_json)
        return
    box = DeadLetterBox(kafka, CLOCK)
    box.topics()  # says what is missing before anything is begun
    producer = LibrdkafkaTransactionalProducer(kafka, kafka.group_of("dlq"))
    try:
        producer.start()
        marks = box.marks()  # after the start, which ended a replay that was running
        selected = islice(box.selected(meant, marks), letters.limit)
        sent = box.mark(selected, action, producer, deadline_ms=deadline_ms)
    finally:
        producer.close()
    counts = {action: sent.marked} | ({"cut": sent.cut} if action == "replayed" else {})
    cut = f"; {sent.cut:,} cannot be: they were cut to fit" if sent.cut else ""
    show_result(counts, f"{sent.marked:,} {action}{cut}", as_json=as_json)
    if not sent.marked:
        raise typer.Exit(FAILED)


def dead_letter_topic(topic: str, kafka: KafkaSettings) -> str:
    """Returns the name of a dead-letter topic, given its name or the name of its source.

    Both may have the prefix.
    """
    name = topic if topic.endswith(DEAD_LETTER_SUFFIX) else topic + DEAD_LETTER_SUFFIX
    return logical_topic(kafka, name)


def place_of_letter(text: str, kafka: KafkaSettings) -> Place:
    """Returns the place of a letter. Raises `ConfigError`."""
    topic, partition, offset = parse_place(
        text, f"{QUERIES_DEAD.name}/2/17", default=QUERIES_DEAD.name
    )
    return dead_letter_topic(topic, kafka), partition, offset


def parse_time_ms(text: str, now_us: int) -> int:
    """Returns epoch milliseconds of an age before now, or of an ISO 8601 time (UTC without a zone).

    Raises `ConfigError`.
    """
    if found := AGE.fullmatch(text):
        return now_us // 1_000 - int(found[1]) * UNIT_S[found[2]] * 1_000
    try:
        moment = datetime.fromisoformat(text)
    except ValueError:
        raise ConfigError(
            f"{text!r} is no age (30m, 2h, 3d) and no time (2026-11-22T10:00Z)"
        ) from None
    return int((moment if moment.tzinfo else moment.replace(tzinfo=UTC)).timestamp() * 1_000)
