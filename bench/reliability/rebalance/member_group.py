"""One broker and a consumer group of generators that join, leave and are killed under a load."""

from __future__ import annotations

import errno
import os
import sys
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

from bench.core.accounting import Accounting, account
from bench.core.kafka import fresh_folder
from bench.core.stack import Stack
from bench.core.topic_recorder import TopicRecorder
from bench.reliability.rebalance.load import RetrievalLoad
from bench.reliability.rebalance.outcome import Change, Kill
from carpool.clock import SystemClock
from carpool.errors import CarpoolError
from carpool.kafka.admin import create_topics
from carpool.kafka.commit_metadata import instance_id_of
from carpool.kafka.fencing import transactional_id
from carpool.kafka.librdkafka.committed import committed_so_far
from carpool.kafka.records import TopicPartition
from carpool.kafka.settings import KafkaSettings
from carpool.testing.kafka import KafkaServer
from carpool.testing.transactions import describe_transaction
from schemas.topics import ANSWERS, RETRIEVALS

PARTITIONS = 6
SERVICE = "generator"
ENVIRONMENT = {
    "CARPOOL_KAFKA_DELIVERY": "exactly_once",
    "CARPOOL_LLM_ENGINE": "none",
    "CARPOOL_GENERATOR_PARTIALS": "false",
}
IMPORT_S = 120.0
ASSIGNED_S = 60.0
STALLED_S = 30.0
TRIES_MAX = 500


class MemberGroup:
    """The members generator-1, generator-2, ... (their instance ids), a load and a recorder.

    Made by `open_group`.
    """

    def __init__(
        self,
        kafka: KafkaSettings,
        stack: Stack,
        recorder: TopicRecorder,
        load: RetrievalLoad,
        folder: Path,
    ) -> None:
        self.load = load
        self._kafka = kafka
        self._group = kafka.group_of(SERVICE)
        self._stack = stack
        self._recorder = recorder
        self._folder = folder
        self._settings_pipes: dict[str, int] = {}

    def prepare(self, *names: str) -> None:
        """Starts members outside the group: they import their modules, then wait for settings."""
        pipes = {name: self._folder / f"{name}.settings" for name in names}
        for name, pipe in pipes.items():
            pipe.unlink(missing_ok=True)
            os.mkfifo(pipe)
            process = self._stack[name]
            process.command = (sys.executable, "-m", "carpool", SERVICE, "--config", str(pipe))
            process.start()
        for name, pipe in pipes.items():
            self._settings_pipes[name] = _open_when_read(pipe)

    def join(self, name: str) -> None:
        """Gives a prepared member its settings, so that it joins; waits until its pages answer."""
        os.close(self._settings_pipes.pop(name))
        self._stack[name].wait_ready()

    def leave(self, name: str) -> None:
        """Ends a member with SIGTERM. Raises `CarpoolError` where it fails."""
        status = self._stack[name].stop()
        if status:
            raise CarpoolError(f"{name} ended with {status}: see {self._stack[name].log_file}")

    def change(self, name: str, *, joins: bool, phase_s: float) -> Change:
        """Lets a member join or leave, watches for `phase_s`; returns which partitions moved."""
        before = self.owners()
        began_s = time.time()
        if joins:
            self.join(name)
        else:
            self.leave(name)
        time.sleep(max(0.0, began_s + phase_s - time.time()))
        ended_s, after = time.time(), self.owners()
        stayed = tuple(each for each in range(PARTITIONS) if before[each] == after[each])
        return Change(
            what=f"{name} {'joins' if joins else 'leaves'}",
            began_s=began_s,
            ended_s=ended_s,
            stayed=stayed,
            moved=tuple(each for each in range(PARTITIONS) if each not in stayed),
        )

    def wait_assigned(self, name: str) -> None:
        """Waits until a member has a partition. Raises `CarpoolError` after a minute."""
        until_s = time.monotonic() + ASSIGNED_S
        while name not in self.owners().values():
            if time.monotonic() > until_s:
                raise CarpoolError(
                    f"{name} has no partition after {ASSIGNED_S:g} s: see "
                    f"{self._stack[name].log_file}"
                )
            time.sleep(0.2)

    def kill_in_transaction(self, name: str) -> Kill:
        """Kills a member when its open transaction contains offsets.

        Raises `CarpoolError` where that was never so.
        """
        victim = self._stack[name]
        owned = tuple(partition for partition, owner in self.owners().items() if owner == name)
        for _ in range(TRIES_MAX):
            victim.pause()
            time.sleep(0.01)  # the broker handles what the victim had sent
            found = describe_transaction(self._kafka.bootstrap, transactional_id(self._group, name))
            if found is not None and found.holds_offsets:
                victim.kill()
                return Kill(killed_s=time.time(), partitions=owned)
            victim.resume()
            time.sleep(0.02)
        raise CarpoolError(f"{name} was never paused inside a transaction that contained offsets")

    def owners(self) -> dict[int, str | None]:
        """Returns the instance id that committed last in each partition."""
        wanted = [TopicPartition(RETRIEVALS.name, partition) for partition in range(PARTITIONS)]
        found = committed_so_far(self._kafka, self._group, wanted)
        return {at.partition: instance_id_of(raw.metadata or "") for at, raw in found.items()}

    def answered_s(self) -> dict[int, list[float]]:
        """Returns when answers of each partition were read: epoch seconds, in order."""
        times: dict[int, list[float]] = {each: [] for each in range(PARTITIONS)}
        for record in self._recorder.records(ANSWERS.name):
            times[int(record.key.partition("-")[0])].append(record.received_us / 1_000_000)
        return {each: sorted(found) for each, found in times.items()}

    def account(self) -> Accounting:
        """Ends the load, waits for its answers, and returns the accounting."""
        self.load.stop()
        self._recorder.wait(set(self.load.ids), (ANSWERS.name,), stalled_s=STALLED_S, settle_s=2)
        return account(self.load.ids, (each.key for each in self._recorder.records(ANSWERS.name)))


def _open_when_read(pipe: Path) -> int:
    """Opens a pipe for writing when a member reads it. Raises `CarpoolError` after 2 minutes."""
    until_s = time.monotonic() + IMPORT_S
    while True:
        try:
            return os.open(pipe, os.O_WRONLY | os.O_NONBLOCK)
        except OSError as error:
            if error.errno != errno.ENXIO:
                raise
        if time.monotonic() > until_s:
            raise CarpoolError(
                f"a member has not read its settings after {IMPORT_S:g} s: see "
                f"{pipe.with_suffix('.log')}"
            )
        time.sleep(0.05)


@contextmanager
def open_group(
    folder: Path,
    *,
    members: int,
    rate_per_s: float,
    settings: Mapping[str, str],
) -> Iterator[MemberGroup]:
    """Yields an empty group on a new broker; all processes end with the block. Blocks."""
    with fresh_folder(folder / "kafka") as data, KafkaServer(data) as server:
        kafka = KafkaSettings(
            bootstrap=server.bootstrap, group_prefix="rebalance", partitions=PARTITIONS
        )
        create_topics(kafka)
        prefix = {"CARPOOL_KAFKA_GROUP_PREFIX": kafka.group_prefix}
        stack = Stack(
            bootstrap=server.bootstrap,
            index_dir=folder,
            work_dir=folder,
            services=(SERVICE,),
            members=members,
            settings={**prefix, **ENVIRONMENT, **settings},
        )
        with TopicRecorder(kafka, [ANSWERS.name], SystemClock(), from_beginning=True) as recorder:
            load = RetrievalLoad(server.bootstrap, partitions=PARTITIONS, rate_per_s=rate_per_s)
            try:
                yield MemberGroup(kafka, stack, recorder, load, folder)
            finally:
                for process in stack.processes.values():
                    process.kill()
