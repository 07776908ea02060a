"""`carpool answers`: the answers to questions that were published, by their ids."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Annotated

import typer

from carpool.clock import SystemClock
from carpool.errors import ConfigError
from carpool.kafka.records import Message
from carpool.kafka.settings import KafkaSettings
from carpool.kafka.topic_reader import TopicReader, is_final, read_topic
from cli.console import people, print_json_line
from cli.exit_codes import FAILED
from cli.options import ClientArgs, spread
from schemas.answer import Answer
from schemas.codec import decode
from schemas.topics import ANSWERS, KEY_SEPARATOR

READ_AT_ONCE = 500
POLL_S = 0.1


@spread
def answers(
    names: Annotated[
        list[str],
        typer.Argument(
            metavar="ID|FILE...",
            help="Ids, or files of ids as `carpool publish` prints them; - is standard input.",
        ),
    ],
    follow: Annotated[
        bool, typer.Option("--follow", help="Wait until each question has an answer.")
    ] = False,
    *,
    sources: ClientArgs,
) -> None:
    """Print the answers to questions by their ids, as JSON: one line for each record of an answer.

    They are found for as long as rag.answers.v1 keeps them (7 days). Exit code 1: an id has none.

    \b
    Examples:
      carpool answers 4f1c
      carpool answers ids.txt --follow > answers.jsonl
    """
    left = dict.fromkeys(_ids_of(names))
    wanted = frozenset(left)
    for answer in _answers_to(sources.settings().kafka, wanted, left, follow=follow):
        print_json_line(answer)
        left.pop(answer.query_id, None)
    for query_id in left:
        people().print(f"no answer to {query_id}", style="yellow")
    if left:
        raise typer.Exit(FAILED)


def _ids_of(names: Iterable[str]) -> Iterator[str]:
    """Yields ids, those of files too. Raises `ConfigError` for a file that cannot be read."""
    for name in names:
        try:
            if name == "-":
                text = sys.stdin.read()
            elif (path := Path(name)).is_file():
                text = path.read_text(encoding="utf-8")
            else:
                yield name
                continue
            for line in text.split("\n"):
                if line.strip():
                    yield json.loads(line)["query_id"] if line.startswith("{") else line.strip()
        except (OSError, ValueError, KeyError) as error:
            raise ConfigError(f"cannot read ids from {name}: {error!r}") from error


def _answers_to(
    kafka: KafkaSettings, wanted: frozenset[str], left: dict[str, None], *, follow: bool
) -> Iterator[Answer]:
    """Yields the answers to the ids in `wanted`, until the end of the log.

    With `follow`, until the caller has taken all ids out of `left`.
    """
    if not follow:
        messages = read_topic(kafka, SystemClock(), ANSWERS.name, name="answers")
        yield from (answer for each in messages if (answer := _answer_of(each, wanted)))
        return
    with TopicReader(kafka, SystemClock(), name="answers") as reader:
        starts = {at: reader.bounds(at)[0] for at in reader.partitions(ANSWERS.name)}
        reader.add(starts)
        while left:
            batch = reader.poll(READ_AT_ONCE, POLL_S)
            for error in filter(is_final, batch.errors):
                raise reader.unreadable(next(iter(starts)), error)
            yield from (answer for each in batch.messages if (answer := _answer_of(each, wanted)))


def _answer_of(message: Message, wanted: frozenset[str]) -> Answer | None:
    """Returns the answer of a record, if it is one to an id in `wanted`."""
    key = (message.key or b"").decode(errors="replace")
    if message.value and {key, key.rpartition(KEY_SEPARATOR)[0]} & wanted:
        return decode(Answer, message.value, message.headers)
    return None
