"""The options that select dead letters."""

from __future__ import annotations

import re
from datetime import UTC, datetime
from typing import Annotated

import typer

from carpool.clock import SystemClock
from carpool.dead_letters.selection import Place, Selection
from carpool.kafka.settings import KafkaSettings
from cli.options import logical_topic
from schemas.topics import DEAD_LETTER_SUFFIX, QUERIES_DEAD

AGE = re.compile(r"(\d{1,6})([smhd])")
UNIT_S = {"s": 1, "m": 60, "h": 3_600, "d": 86_400}
PLACE = re.compile(r"(?:([A-Za-z0-9._-]{1,249})/)?(\d{1,9})/(\d{1,18})")

PlacesArgument = Annotated[
    list[str] | None,
    typer.Argument(
        metavar="[TOPIC/]PARTITION/OFFSET...",
        help="Letters by their place, as `list --letters` shows it. Without a topic: "
        f"{QUERIES_DEAD.name}.",
    ),
]
TopicOption = Annotated[
    list[str] | None,
    typer.Option("--topic", "-t", help="Dead-letter topic, or the topic it is for. Default: all."),
]
PartitionOption = Annotated[
    list[int] | None,
    typer.Option("--partition", "-p", min=0, help="Only this partition."),
]
FromOption = Annotated[
    int | None,
    typer.Option("--from-offset", min=0, help="First offset, in each partition."),
]
ToOption = Annotated[
    int | None,
    typer.Option("--to-offset", min=0, help="Last offset, in each partition."),
]
ReasonOption = Annotated[
    list[str] | None,
    typer.Option("--reason", "-r", help="Only for this reason, as `list` shows it."),
]
SinceOption = Annotated[
    str | None,
    typer.Option(
        "--since", metavar="AGE|TIME", help="Not older than 30m, 2h, 3d; or 2026-11-22T10:00Z."
    ),
]
UntilOption = Annotated[
    str | None,
    typer.Option("--until", metavar="AGE|TIME", help="Not newer than that."),
]


def selection(
    kafka: KafkaSettings,
    *,
    places: list[str] | None = None,
    topics: list[str] | None = None,
    partitions: list[int] | None = None,
    offset_min: int | None = None,
    offset_max: int | None = None,
    reasons: list[str] | None = None,
    since: str | None = None,
    until: str | None = None,
    marked: bool = False,
) -> Selection:
    """Returns the selection; ages count from now. Raises `typer.BadParameter`."""
    now_us = SystemClock().now_us()
    return Selection(
        topics=frozenset(dead_letter_topic(topic, kafka) for topic in topics or ()),
        places=frozenset(parse_place(place, kafka) for place in places or ()),
        partitions=frozenset(partitions or ()),
        offset_min=offset_min,
        offset_max=offset_max,
        reasons=frozenset(reasons or ()),
        since_ms=None if since is None else parse_time_ms(since, now_us),
        until_ms=None if until is None else parse_time_ms(until, now_us),
        marked=marked,
    )


def dead_letter_topic(topic: str, kafka: KafkaSettings) -> str:
    """Returns the name of a dead-letter topic, given its name or the name of its source.

    Both may have the prefix.
    """
    name = topic if topic.endswith(DEAD_LETTER_SUFFIX) else topic + DEAD_LETTER_SUFFIX
    return logical_topic(kafka, name)


def parse_place(text: str, kafka: KafkaSettings) -> Place:
    """Returns the place of a letter. Raises `typer.BadParameter`."""
    found = PLACE.fullmatch(text)
    if found is None:
        raise typer.BadParameter(
            f"{text!r} is no place: write [TOPIC/]PARTITION/OFFSET, such as "
            f"{QUERIES_DEAD.name}/2/17"
        )
    topic, partition, offset = found.groups()
    name = dead_letter_topic(topic, kafka) if topic else QUERIES_DEAD.name
    return name, int(partition), int(offset)


def parse_time_ms(text: str, now_us: int) -> int:
    """Returns epoch milliseconds of an age before now, or of an ISO 8601 time (UTC without a zone).

    Raises `typer.BadParameter`.
    """
    if found := AGE.fullmatch(text):
        return now_us // 1_000 - int(found[1]) * UNIT_S[found[2]] * 1_000
    try:
        moment = datetime.fromisoformat(text)
    except ValueError:
        raise typer.BadParameter(
            f"{text!r} is no age (30m, 2h, 3d) and no time (2026-11-22T10:00Z)"
        ) from None
    return int((moment if moment.tzinfo else moment.replace(tzinfo=UTC)).timestamp() * 1_000)
