"""`carpool groups`: moves a committed offset, and keeps what is complete after it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Annotated

import typer

from carpool.errors import ConfigError, RetryableError
from carpool.kafka.clients import Position
from carpool.kafka.deployment import broker_facts
from carpool.kafka.librdkafka.committed import GroupOffsets
from carpool.kafka.records import TopicPartition
from carpool.kafka.settings import KafkaSettings
from carpool.kafka.standing import Standing, missing_records, reset_to, skipped
from cli.console import output
from cli.exit_codes import FAILED
from cli.options import ClientArgs, command_group, logical_topic, parse_place, spread
from cli.services import INPUTS
from schemas.topics import read_with

app = command_group(
    "groups",
    """Move the committed offset of a service by hand, while it is stopped.

A service commits an offset and, in its metadata, what is complete after it. Kafka's own tool
(kafka-consumer-groups --reset-offsets) drops that list, so complete work is repeated. These
commands keep it.
""",
)

YesOption = Annotated[bool, typer.Option("--yes", "-y", help="Do not ask.")]


@dataclass(frozen=True, kw_only=True)
class Moved:
    """One offset of a service, which is moved."""

    service: Annotated[
        str, typer.Argument(metavar="SERVICE", help="grouper, searcher, generator or indexer.")
    ]
    place: Annotated[
        str,
        typer.Argument(metavar="TOPIC/PARTITION/OFFSET", help="A record of the topic it reads."),
    ]
    yes: YesOption = False

    def move(self, kafka: KafkaSettings, moved: Callable[[Position, int], Position]) -> None:
        """Shows the offset that `moved` returns, asks, and commits it. Raises `ConfigError`."""
        topic, partition, offset = parse_place(self.place, "rag.groups.v1/0/1234")
        if self.service not in INPUTS:
            known = ", ".join(INPUTS)
            raise ConfigError(f"there is no service {self.service!r}; there are {known}")
        group = kafka.group_of(self.service)
        at = TopicPartition(logical_topic(kafka, topic), partition)
        offsets, show = GroupOffsets(kafka, group), output()
        now = offsets.read(at)
        wanted = moved(now, offset)
        show.print(f"group {group}, {kafka.broker_topic(at.topic)}[{partition}]")
        show.print(f"now   offset {now.offset}  {now.metadata}")
        show.print(f"then  offset {wanted.offset}  {wanted.metadata}")
        if not self.yes and not typer.confirm("Commit this?"):
            raise typer.Exit(FAILED)
        offsets.write(at, wanted)
        show.print("committed; start the service")


@app.command()
@spread
def skip(record: Moved, *, sources: ClientArgs) -> None:
    """Pass over one record: it counts as complete, and is never read again.

    A question that is passed over gets no answer. Publish it again to get one.

    \b
    Example:
      carpool groups skip searcher rag.groups.v1/0/1234
    """
    record.move(sources.settings().kafka, skipped)


@app.command()
@spread
def reset(record: Moved, *, sources: ClientArgs) -> None:
    """Read from this record on. What is complete after the old offset stays complete.

    A smaller offset repeats the records up to the old one; a larger offset passes over them.
    A group that has committed nothing may then begin.

    \b
    Example:
      carpool groups reset grouper rag.queries.v1/2/5000
    """
    record.move(sources.settings().kafka, reset_to)


@app.command("accept-loss")
@spread
def accept_loss(yes: YesOption = False, *, sources: ClientArgs) -> None:
    """Pass over all records that were deleted before they were processed.

    A partition waits where retention has removed records that its service had not processed. This
    names them, and lets every service read on from the first record that is left. What is complete
    after it stays complete. Questions that are gone get no answer: publish them again.

    \b
    Example:
      carpool groups accept-loss
    """
    kafka, show = sources.settings().kafka, output()
    gaps: dict[tuple[str, TopicPartition], Standing] = {}
    for service, topic in INPUTS.items():
        group = kafka.group_of(service)
        facts = broker_facts(kafka, (), group, [each.name for each in read_with(topic)])
        own = {kafka.broker_topic(each.name) for each in read_with(topic)}
        if own & facts.topics.keys() and not facts.standings:
            raise RetryableError(
                f"the brokers did not say where the group {group} is: try again, and make sure "
                "that these credentials have the right Read on it"
            )
        gaps |= {(group, at): each for at, each in facts.standings.items() if each.has_gap}
    for (group, at), standing in gaps.items():
        show.print(f"group {group}, {''.join(missing_records(at, standing))}")
    if not gaps:
        show.print("no record is missing")
    elif not yes and not typer.confirm("Accept this loss?"):
        raise typer.Exit(FAILED)
    for (group, at), standing in gaps.items():
        place = TopicPartition(logical_topic(kafka, at.topic), at.partition)
        offsets = GroupOffsets(kafka, group)
        offsets.write(place, reset_to(offsets.read(place), standing.first))
        show.print(f"committed {standing.first} for {at.topic}[{at.partition}]; start the service")
