"""`carpool groups`: moves a committed offset, and keeps what is complete after it."""

from __future__ import annotations

import re
from typing import Annotated

import typer

from carpool.errors import ConfigError, RetryableError
from carpool.kafka.settings import KafkaSettings
from cli.console import output
from cli.options import Beside, logical_topic, spread
from cli.services import INPUTS
from schemas.topics import read_with

app = typer.Typer(
    name="groups",
    help="""Move the committed offset of a service by hand, while it is stopped.

A service commits an offset and, in its metadata, what is complete after it. Kafka's own tool
(kafka-consumer-groups --reset-offsets) drops that list, so complete work is repeated. These
commands keep it.
""",
    no_args_is_help=True,
    rich_markup_mode=None,
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 120},
)

PLACE = re.compile(r"([A-Za-z0-9._-]{1,249})/([0-9]{1,9})/([0-9]{1,18})")

ServiceArgument = Annotated[
    str, typer.Argument(metavar="SERVICE", help="grouper, searcher or generator.")
]
PlaceArgument = Annotated[
    str, typer.Argument(metavar="TOPIC/PARTITION/OFFSET", help="A record of the topic it reads.")
]
YesOption = Annotated[bool, typer.Option("--yes", "-y", help="Do not ask.")]


@app.command()
@spread
def skip(
    service: ServiceArgument,
    place: PlaceArgument,
    yes: YesOption = False,
    *,
    beside: Beside,
) -> None:
    """Pass over one record: it counts as complete, and is never read again.

    A question that is passed over gets no answer. Publish it again to get one.

    \b
    Example:
      carpool groups skip searcher rag.groups.v1/0/1234
    """
    topic, partition, offset = _place(place)
    kafka = beside.settings().kafka
    _move(kafka, service, topic, partition, offset, is_skip=True, yes=yes)


@app.command()
@spread
def reset(
    service: ServiceArgument,
    place: PlaceArgument,
    yes: YesOption = False,
    *,
    beside: Beside,
) -> None:
    """Read from this record on. What is complete after the old offset stays complete.

    A smaller offset repeats the records up to the old one; a larger offset passes over them.
    A group that has committed nothing may then begin.

    \b
    Example:
      carpool groups reset grouper rag.queries.v1/2/5000
    """
    topic, partition, offset = _place(place)
    kafka = beside.settings().kafka
    _move(kafka, service, topic, partition, offset, is_skip=False, yes=yes)


@app.command("accept-loss")
@spread
def accept_loss(
    yes: YesOption = False,
    *,
    beside: Beside,
) -> None:
    """Pass over all records that were deleted before they were processed.

    A partition waits where retention has removed records that its service had not processed. This
    names them, and lets every service read on from the first record that is left. What is complete
    after it stays complete. Questions that are gone get no answer: publish them again.

    \b
    Example:
      carpool groups accept-loss
    """
    from carpool.kafka.deployment import broker_facts
    from carpool.kafka.librdkafka.group_offsets import GroupOffsets
    from carpool.kafka.move_position import reset_to
    from carpool.kafka.records import TopicPartition
    from carpool.kafka.standing import Standing, missing_records

    kafka, show = beside.settings().kafka, output()
    gaps: dict[tuple[str, TopicPartition], Standing] = {}
    for service, topic in INPUTS.items():
        group = kafka.group_of(service)
        facts = broker_facts(kafka, (), group, [each.name for each in read_with(topic)])
        if facts.topics and not facts.standings:
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
        raise typer.Exit(1)
    for (group, at), standing in gaps.items():
        place = TopicPartition(logical_topic(kafka, at.topic), at.partition)
        offsets = GroupOffsets(kafka, group)
        offsets.write(place, reset_to(offsets.read(place), standing.first))
        show.print(f"committed {standing.first} for {at.topic}[{at.partition}]; start the service")


def _place(text: str) -> tuple[str, int, int]:
    found = PLACE.fullmatch(text)
    if found is None:
        raise ConfigError(f"{text!r} is no TOPIC/PARTITION/OFFSET, such as rag.groups.v1/0/1234")
    return found[1], int(found[2]), int(found[3])


def _move(
    kafka: KafkaSettings,
    service: str,
    topic: str,
    partition: int,
    offset: int,
    *,
    is_skip: bool,
    yes: bool,
) -> None:
    from carpool.kafka.librdkafka.group_offsets import GroupOffsets
    from carpool.kafka.move_position import reset_to, skipped
    from carpool.kafka.records import TopicPartition

    if service not in INPUTS:
        raise ConfigError(f"there is no service {service!r}; there are {', '.join(INPUTS)}")
    group, at = kafka.group_of(service), TopicPartition(logical_topic(kafka, topic), partition)
    offsets = GroupOffsets(kafka, group)
    now = offsets.read(at)
    wanted = (skipped if is_skip else reset_to)(now, offset)
    show = output()
    show.print(f"group {group}, {kafka.broker_topic(at.topic)}[{partition}]")
    show.print(f"now   offset {now.offset}  {now.metadata}")
    show.print(f"then  offset {wanted.offset}  {wanted.metadata}")
    if not yes and not typer.confirm("Commit this?"):
        raise typer.Exit(1)
    offsets.write(at, wanted)
    show.print("committed; start the service")
