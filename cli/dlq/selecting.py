"""The options that select dead letters."""

from __future__ import annotations

import re
from dataclasses import dataclass
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

Places = Annotated[
    list[str] | None,
    typer.Argument(
        metavar="[TOPIC/]PARTITION/OFFSET...",
        help="Letters by their place, as `list --letters` shows it. Without a topic: "
        f"{QUERIES_DEAD.name}.",
    ),
]
Topics = Annotated[
    list[str] | None,
    typer.Option("--topic", "-t", help="Dead-letter topic, or the topic it is for. Default: all."),
]
Reasons = Annotated[
    list[str] | None,
    typer.Option("--reason", "-r", help="Only for this reason, as `list` shows it."),
]
Since = Annotated[
    str | None,
    typer.Option(
        "--since", metavar="AGE|TIME", help="Not older than 30m, 2h, 3d; or 2026-11-22T10:00Z."
    ),
]
Until = Annotated[
    str | None,
    typer.Option("--until", metavar="AGE|TIME", help="Not newer than that."),
]
Limit = Annotated[
    int | None,
    typer.Option("--limit", "-n", min=1, help="Select only the first N letters."),
]
All = Annotated[
    bool, typer.Option("--all", help="All letters of the topics, if no other option selects any.")
]
DryRun = Annotated[bool, typer.Option("--dry-run", help="Only show the selected letters.")]


@dataclass(frozen=True, kw_only=True)
class Letters:
    """Which letters: of these topics, for these reasons, of this age."""

    topics: Topics = None
    reasons: Reasons = None
    since: Since = None
    until: Until = None
    limit: Limit = None

    def selection(
        self, kafka: KafkaSettings, places: list[str] | None = None, *, marked: bool = False
    ) -> Selection:
        """Returns the selection; ages count from now. Raises `typer.BadParameter`."""
        now_us = SystemClock().now_us()
        return Selection(
            topics=frozenset(dead_letter_topic(topic, kafka) for topic in self.topics or ()),
            places=frozenset(parse_place(place, kafka) for place in places or ()),
            reasons=frozenset(self.reasons or ()),
            since_ms=None if self.since is None else parse_time_ms(self.since, now_us),
            until_ms=None if self.until is None else parse_time_ms(self.until, now_us),
            marked=marked,
        )


@dataclass(frozen=True, kw_only=True)
class NamedLetters(Letters):
    """Letters that something is done with: it must be said which, or that all are meant."""

    everything: All = False
    dry_run: DryRun = False

    def checked(
        self, kafka: KafkaSettings, places: list[str] | None, *, marked: bool = False
    ) -> Selection:
        """Returns the selection. Raises `typer.BadParameter` where nothing says which letters."""
        meant = self.selection(kafka, places, marked=marked)
        if not (self.everything or meant.is_narrow):
            raise typer.BadParameter(
                "say which letters: by place, --reason, --since, ...; or --all of them"
            )
        return meant


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
