"""One broker, members of one service that come, go and are killed, a load, and a reader of
committed answers.
"""

from __future__ import annotations

import errno
import os
import sys
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

import confluent_kafka

from bench.core.accounting import Books, close_books
from bench.core.made_up import fresh_folder
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
SHARE_S = 60.0
STALLED_S = 30.0
TRIES_MAX = 500


class Rig:
    """Made by `open_rig`. Members are named generator-1, generator-2 and so on, which are their
    instance ids, too.
    """

    def __init__(
        self,
        kafka: KafkaSettings,
        stack: Stack,
        reader: TopicRecorder,
        load: RetrievalLoad,
        folder: Path,
    ) -> None:
        self.load = load
        self._kafka = kafka
        self._group = kafka.group_of(SERVICE)
        self._stack = stack
        self._reader = reader
        self._folder = folder
        self._doors: dict[str, int] = {}

    def prepare(self, *names: str) -> None:
        """Starts members, and returns when all have imported their modules and wait for their
        settings, outside the group.
        """
        pipes = {name: self._folder / f"{name}.settings" for name in names}
        for name, pipe in pipes.items():
            pipe.unlink(missing_ok=True)
            os.mkfifo(pipe)
            process = self._stack[name]
            process.command = (sys.executable, "-m", "carpool", SERVICE, "--config", str(pipe))
            process.start()
        for name, pipe in pipes.items():
            self._doors[name] = _open_once_read(pipe)

    def let_in(self, name: str) -> None:
        """Lets a member that is prepared read its settings, start, and join the group; returns when
        its pages answer.
        """
        os.close(self._doors.pop(name))
        self._stack[name].wait_ready()

    def leave(self, name: str) -> None:
        """Ends a member in order, as SIGTERM does. Raises `CarpoolError` where it ends
        otherwise.
        """
        status = self._stack[name].stop()
        if status:
            raise CarpoolError(f"{name} ended with {status}: see {self._stack[name].log_file}")

    def change(self, name: str, *, comes: bool, phase_s: float) -> Change:
        """Lets a member in, or ends it, and watches for `phase_s`. Returns what moved, and what it
        held up whom.
        """
        before, held_up = self.owners(), self._rebalance_s()
        began_s = time.time()
        if comes:
            self.let_in(name)
        else:
            self.leave(name)
        time.sleep(max(0.0, began_s + phase_s - time.time()))
        ended_s, after = time.time(), self.owners()
        stayed = tuple(each for each in range(PARTITIONS) if before[each] == after[each])
        return Change(
            what=f"{name} {'comes' if comes else 'goes'}",
            began_s=began_s,
            ended_s=ended_s,
            stayed=stayed,
            moved=tuple(each for each in range(PARTITIONS) if each not in stayed),
            rebalance_ms={
                each: (total_s - held_up.get(each, 0.0)) * 1_000
                for each, total_s in self._rebalance_s().items()
            },
        )

    def _rebalance_s(self) -> dict[str, float]:
        """For how long each member's polling thread was held up by rebalances so far."""
        return {
            name: process.metric("carpool_rebalance_seconds_sum")
            for name, process in self._stack.processes.items()
            if process.is_running and name not in self._doors
        }

    def await_share(self, name: str) -> None:
        """Waits until a member has a partition. Raises `CarpoolError` where that takes a minute."""
        until_s = time.monotonic() + SHARE_S
        while name not in self.owners().values():
            if time.monotonic() > until_s:
                raise CarpoolError(
                    f"{name} has no partition after {SHARE_S:g} s: see {self._stack[name].log_file}"
                )
            time.sleep(0.2)

    def kill_in_transaction(self, name: str) -> Kill:
        """Kills a member once its coordinator says that offsets are in its open transaction. Raises
        `CarpoolError` where it never is.
        """
        victim = self._stack[name]
        owned = tuple(partition for partition, owner in self.owners().items() if owner == name)
        for _ in range(TRIES_MAX):
            victim.pause()
            time.sleep(0.01)  # what it had already sent is served
            found = describe_transaction(self._kafka.bootstrap, transactional_id(self._group, name))
            if found is not None and found.holds_offsets:
                victim.kill()
                return Kill(killed_s=time.time(), partitions=owned)
            victim.resume()
            time.sleep(0.02)
        raise CarpoolError(f"{name} was never stopped inside a transaction that held offsets")

    def owners(self) -> dict[int, str | None]:
        """Returns which instance id committed last in each partition."""
        wanted = [
            confluent_kafka.TopicPartition(RETRIEVALS.name, partition)
            for partition in range(PARTITIONS)
        ]
        return {
            raw.partition: instance_id_of(raw.metadata or "")
            for raw in committed_so_far(self._kafka, self._group, wanted)
        }

    def answered_s(self) -> dict[int, list[float]]:
        """Returns when answers to queries of each partition were read, epoch seconds, in order."""
        times: dict[int, list[float]] = {each: [] for each in range(PARTITIONS)}
        for record in self._reader.records(ANSWERS.name):
            times[int(record.key.partition("-")[0])].append(record.arrived_us / 1_000_000)
        return {each: sorted(found) for each, found in times.items()}

    def close_books(self) -> Books:
        """Ends the load, waits for its answers and a moment longer, and returns what became of
        it.
        """
        self.load.stop()
        self._reader.wait(set(self.load.ids), (ANSWERS.name,), stalled_s=STALLED_S, settle_s=2)
        return close_books(
            self.load.ids, (each.key for each in self._reader.records(ANSWERS.name)), {}
        )


def _open_once_read(pipe: Path) -> int:
    """Opens a pipe for writing once somebody has it open for reading. Raises `CarpoolError` where
    nobody does in time.
    """
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
def open_rig(
    folder: Path,
    *,
    members: int,
    rate_per_s: float,
    settings: Mapping[str, str] | None = None,
) -> Iterator[Rig]:
    """Yields a rig with a broker and nobody in the group; its processes end with the block. Blocks
    for seconds.
    """
    with fresh_folder(folder / "kafka") as data, KafkaServer(data) as server:
        kafka = KafkaSettings(
            bootstrap=server.bootstrap, group_prefix="rebalance", partitions=PARTITIONS
        )
        create_topics(kafka)
        stack = Stack(
            bootstrap=server.bootstrap,
            index_dir=folder,
            work_dir=folder,
            services=(SERVICE,),
            members=members,
            settings={
                "CARPOOL_KAFKA_GROUP_PREFIX": kafka.group_prefix,
                **ENVIRONMENT,
                **(settings or {}),
            },
        )
        with TopicRecorder(kafka, [ANSWERS.name], SystemClock(), from_beginning=True) as reader:
            load = RetrievalLoad(server.bootstrap, partitions=PARTITIONS, rate_per_s=rate_per_s)
            try:
                yield Rig(kafka, stack, reader, load, folder)
            finally:
                for process in stack.processes.values():
                    process.kill()
