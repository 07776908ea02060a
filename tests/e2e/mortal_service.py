"""A service of the tests that dies of the record `bad`, and never ends the record `slow`.

It tries a suspected record after a second without work.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence

from carpool.intakes import query_intake
from carpool.kafka.settings import KafkaSettings
from carpool.loop import alone
from carpool.loop.stage import Credit, Done, Sink, Unit
from carpool.run_service import run_service
from carpool.telemetry.settings import HttpSettings, LogSettings
from schemas.query import Query
from tests.loop.support import result


class MortalStage:
    """Answers a tick later, so that some records are in hand."""

    def __init__(self) -> None:
        self._units: list[Unit[Query]] = []

    def start(self, sink: Sink) -> None:
        self._sink = sink

    def assigned(self, partitions: object) -> None:
        """Nothing to prepare."""

    def credit(self) -> Credit:
        return Credit(records=100, size_bytes=1_000_000)

    def offer(self, unit: Unit[Query], now_us: int) -> None:
        if unit.record.text == "bad":
            os._exit(9)
        self._units.append(unit)

    def tick(self, now_us: int, waiting: int, next_commit_at_us: int = 0) -> int | None:
        for unit in self._units:
            if unit.record.text != "slow":
                self._sink.done(Done(parts=unit.owed, outputs=(result(unit.record.text or ""),)))
        self._units = [unit for unit in self._units if unit.record.text == "slow"]
        return None

    def revoke(self, unit_ids: frozenset[int], partitions: object) -> None:
        self._units = [unit for unit in self._units if unit.id not in unit_ids]

    def drain(self, until_us: int) -> None:
        """Nothing to begin."""

    def not_ready(self) -> Sequence[str]:
        return ("slow",) if self._units else ()  # a drain does not wait for it

    def close(self) -> None:
        """Nothing to close."""


if __name__ == "__main__":
    bootstrap, instance_id, protocol = sys.argv[1:]
    alone.QUIET_US = 1_000_000
    run_service(
        name="grouper",
        intake=query_intake(),
        build_stage=lambda metrics, clock: MortalStage(),
        kafka=KafkaSettings(
            bootstrap=bootstrap, instance_id=instance_id, librdkafka={"group.protocol": protocol}
        ),
        http=HttpSettings(),
        logs=LogSettings(),
    )
