"""Prompts that end out of order, over a backlog of 1,024: the commit metadata stays within its
bytes, and no record is lost or repeated.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import dataclass, field

import pytest

from carpool.kafka.clients import Position
from carpool.kafka.commit_metadata import METADATA_BYTES_MAX, with_instance_id
from carpool.kafka.records import TopicPartition
from carpool.loop.delivery.commit_planner import HELD_US, CommitPlanner
from carpool.loop.in_flight import InFlight
from carpool.loop.stage import Done
from schemas.topics import RETRIEVALS
from tests.records import a_message

AT = TopicPartition(RETRIEVALS.name, 0)
BACKLOG, RECORDS, FIRST_OFFSET = 1_024, 3_000, 10_000_000
LONGEST_ID = "x" * 64


@dataclass
class Intake:
    """A member that takes records in as the loop does, and commits what has ended.

    `bytes_max`: the longest commit metadata. `waits`: how often the backlog could not be filled.
    """

    in_flight: InFlight = field(default_factory=InFlight)
    planner: CommitPlanner = field(default_factory=lambda: CommitPlanner(0))
    backlog: dict[int, int] = field(default_factory=dict)  # unit by number of the prompt
    taken: int = 0
    bytes_max: int = 0
    waits: int = 0
    now_us: int = 0

    def __post_init__(self) -> None:
        self.in_flight.assign({AT: Position(FIRST_OFFSET, "")})

    def fill(self) -> list[int]:
        """Takes records in, and returns the numbers of their prompts."""
        came = []
        while len(self.backlog) < BACKLOG and self.taken < RECORDS:
            if self.in_flight.full_partitions():
                self.waits += 1
                break
            message = a_message(AT.topic, FIRST_OFFSET + self.taken)
            unit = self.in_flight.take(message, "retrieval", 1)
            assert unit is not None
            self.backlog[self.taken] = unit.id
            came.append(self.taken)
            self.taken += 1
        return came

    def end(self, number: int) -> None:
        """Ends a prompt, and commits."""
        done = Done(parts=((self.backlog.pop(number), 0),), outputs=())
        self.in_flight.finish(done)
        self.planner.add(done, is_batch=True)
        self.now_us += HELD_US
        self.commit()

    def commit(self) -> None:
        plan = self.planner.plan(self.in_flight, self.now_us, take_all=False)
        for position in plan.positions.values():
            metadata = with_instance_id(position.metadata, LONGEST_ID)
            self.bytes_max = max(self.bytes_max, len(metadata))
        for done in plan.work:
            self.in_flight.complete(done)
        self.planner.committed()
        self.in_flight.committed(plan.positions)
        self.planner.ended(self.now_us, is_aborted=False)


def drain(intake: Intake) -> None:
    """Asserts that everything was taken in, has ended and is committed."""
    while intake.planner.finished:
        intake.now_us += HELD_US
        intake.commit()
    intake.in_flight.check_integrity()
    assert intake.taken == RECORDS and not intake.backlog and intake.in_flight.units == 0
    assert intake.in_flight.committed_offsets() == {AT: FIRST_OFFSET + RECORDS}
    assert intake.bytes_max <= METADATA_BYTES_MAX


@pytest.mark.parametrize(
    "choose",
    [
        lambda waiting: waiting[-1],
        lambda waiting: waiting[1::2][-1] if len(waiting) > 1 else waiting[0],
        lambda waiting: max(waiting, key=lambda number: (number % 2, number)),
        lambda waiting: random.Random(len(waiting) + waiting[0]).choice(waiting),
    ],
    ids=["the newest", "every second", "the odd ones", "any"],
)
def test_an_order_that_leaves_gaps_waits_before_the_metadata_is_full(
    choose: Callable[[list[int]], int],
) -> None:
    intake = Intake()
    while intake.fill() or intake.backlog:
        intake.end(choose(list(intake.backlog)))
    drain(intake)
