"""Members of a service come, go and are killed under load, on one real broker: no gap, no duplicate, and how long it pauses.

The generator without an LLM stands for all services: they share the loop. `-s` prints the figures. The bounds of the pauses
and of the takeover are what is wanted, on a machine that does nothing else; they have not been met yet.
"""

from __future__ import annotations

import threading
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import pairwise
from pathlib import Path

import confluent_kafka
import numpy as np
import pytest

from bench.listening import TopicReader
from bench.stack import ServiceProcess, Stack
from carpool.clock import SystemClock
from carpool.kafka.admin import create_topics
from carpool.kafka.progress import slot_of
from carpool.kafka.settings import KafkaSettings
from carpool.kafka.takeover import transactional_id
from carpool.testing.kafka import SESSION_TIMEOUT_MS, KafkaServer
from carpool.testing.transactions import describe_transaction
from schemas.codec import encode
from schemas.query import Query
from schemas.record import ClusterId, Source
from schemas.retrieval import Hit, Retrieval
from schemas.topics import ANSWERS, QUERIES, RETRIEVALS

pytestmark = [pytest.mark.kafka, pytest.mark.long, pytest.mark.timeout(300)]

PARTITIONS = 6
RATE_PER_S = 240
PHASE_S = 8.0
PAUSE_S_MAX = 0.2
TAKEOVER_S_MAX = SESSION_TIMEOUT_MS / 1_000 + 2.0
TRIES_MAX = 500


class Load(threading.Thread):
    """Publishes retrievals at a steady rate, to one partition after another; a query's id begins with its partition."""

    def __init__(self, bootstrap: str) -> None:
        super().__init__(daemon=True)
        self._producer = confluent_kafka.Producer({"bootstrap.servers": bootstrap, "linger.ms": 1})
        self._stopping = threading.Event()
        self.ids: list[str] = []

    def run(self) -> None:
        began_s = time.monotonic()
        while not self._stopping.is_set():
            number = len(self.ids)
            self._publish(number % PARTITIONS, number)
            self._producer.poll(0)
            time.sleep(max(0.0, began_s + (number + 1) / RATE_PER_S - time.monotonic()))

    def _publish(self, partition: int, number: int) -> None:
        query_id = f"{partition}-{number}"
        retrieval = Retrieval(
            query=Query(query_id=query_id, text=f"What of {number}?"),
            source=Source(topic=QUERIES.name, partition=partition, offset=number),
            revision=1,
            is_final=True,
            index_version="i",
            embedding_model="m",
            hits=(Hit(doc_id="d-1", score=0.9, cluster=ClusterId(1), title="A title", text="A passage."),),
            skipped_clusters=(),
        )
        value, headers = encode(retrieval, event_id=query_id, source="test", time_us=0)
        self._producer.produce(RETRIEVALS.name, value, query_id, partition=partition, headers=list(headers))
        self.ids.append(query_id)

    def stop(self) -> None:
        self._stopping.set()
        self.join()
        assert self._producer.flush(30) == 0


class Rig:
    """A broker, members that can be started one by one, a load, and a reader of committed answers."""

    def __init__(self, kafka: KafkaSettings, stack: Stack, reader: TopicReader, load: Load) -> None:
        self.kafka = kafka
        self.stack = stack
        self.reader = reader
        self.load = load
        self.group = kafka.group_of("generator")

    def start(self, name: str) -> ServiceProcess:
        self.stack[name].start()
        self.stack[name].wait_ready()
        return self.stack[name]

    def owners(self) -> dict[int, str | None]:
        """Which slot committed last in each partition."""
        config = {"bootstrap.servers": self.kafka.bootstrap, "group.id": self.group}
        consumer = confluent_kafka.Consumer(config | {"isolation.level": "read_uncommitted"})
        wanted = [confluent_kafka.TopicPartition(RETRIEVALS.name, partition) for partition in range(PARTITIONS)]
        found = consumer.committed(wanted, timeout=10)
        consumer.close()
        return {raw.partition: slot_of(raw.metadata or "") for raw in found}

    def answered_s(self, partition: int) -> list[float]:
        """When answers to queries of this partition were read, epoch seconds."""
        records = self.reader.records(ANSWERS.name)
        return [each.arrived_us / 1_000_000 for each in records if each.key.startswith(f"{partition}-")]

    def check_the_books(self) -> None:
        """Each query has one answer."""
        self.load.stop()
        self.reader.wait(set(self.load.ids), (ANSWERS.name,), stalled_s=30, settle_s=2)
        answers = Counter(each.key for each in self.reader.records(ANSWERS.name))
        assert answers == Counter(self.load.ids)


@contextmanager
def rig(folder: Path) -> Iterator[Rig]:
    with KafkaServer(folder / "kafka") as server:
        kafka = KafkaSettings(bootstrap=server.bootstrap, group_prefix="rebalance", partitions=PARTITIONS)
        create_topics(kafka)
        settings = {
            "CARPOOL_KAFKA_GROUP_PREFIX": kafka.group_prefix,
            "CARPOOL_KAFKA_DELIVERY": "exactly_once",
            "CARPOOL_LLM_ENGINE": "none",
            "CARPOOL_GENERATOR_PARTIALS": "false",
        }
        stack = Stack(
            bootstrap=server.bootstrap,
            index_dir=folder,
            work_dir=folder,
            services=("generator",),
            members=3,
            settings=settings,
        )
        with TopicReader(kafka, [ANSWERS.name], SystemClock(), from_beginning=True) as reader:
            try:
                yield Rig(kafka, stack, reader, Load(server.bootstrap))
            finally:
                stack.stop()


def gaps_s(times_s: list[float], begin_s: float, end_s: float) -> list[float]:
    """Times between neighbours, from the last before `begin_s` to the first after `end_s`."""
    return [later - earlier for earlier, later in pairwise(sorted(times_s)) if later > begin_s and earlier < end_s]


def test_from_one_member_to_three_and_back_loses_and_repeats_nothing_and_partitions_that_stay_hardly_pause(
    tmp_path: Path,
) -> None:
    with rig(tmp_path) as bench:
        bench.start("generator-1")
        bench.load.start()
        time.sleep(PHASE_S)  # Java compiles what is used
        baseline_s = time.time()
        time.sleep(PHASE_S)
        steps = []
        for name, comes in (
            ("generator-2", True),
            ("generator-3", True),
            ("generator-3", False),
            ("generator-2", False),
        ):
            before, began_s = bench.owners(), time.time()
            if comes:
                bench.start(name)
            else:
                assert bench.stack[name].stop() == 0
            time.sleep(PHASE_S)
            after = bench.owners()
            retained = [each for each in range(PARTITIONS) if before[each] == after[each]]
            steps.append((f"{name} {'comes' if comes else 'goes'}", began_s, time.time(), retained))
        bench.check_the_books()
        times_s = {each: bench.answered_s(each) for each in range(PARTITIONS)}
    calm = [gap for each in range(PARTITIONS) for gap in gaps_s(times_s[each], baseline_s, steps[0][1])]
    calm_p99_s = float(np.percentile(calm, 99))
    print(
        f"\nbaseline: gap between answers of a partition p99 {calm_p99_s * 1_000:.0f} ms, max {max(calm) * 1_000:.0f} ms"
    )
    pauses = {}
    for what, began_s, ended_s, retained in steps:
        assert retained, f"{what}: every partition moved"
        longest = max(max(gaps_s(times_s[each], began_s, ended_s)) for each in retained)
        pauses[what] = longest - calm_p99_s
        moved = [each for each in range(PARTITIONS) if each not in retained]
        moving = max((max(gaps_s(times_s[each], began_s, ended_s)) for each in moved), default=0.0)
        print(
            f"{what}: {len(retained)} partitions stay, pause {pauses[what] * 1_000:.0f} ms beyond the baseline's p99; "
            f"{len(moved)} move, longest gap {moving * 1_000:.0f} ms"
        )
    assert {what: pause for what, pause in pauses.items() if pause >= PAUSE_S_MAX} == {}


def test_partitions_of_a_member_killed_inside_a_transaction_that_holds_offsets_go_on_soon(tmp_path: Path) -> None:
    with rig(tmp_path) as bench:
        bench.start("generator-1")
        victim = bench.start("generator-2")
        bench.load.start()
        time.sleep(PHASE_S)
        owned = kill_in_transaction(bench, victim, "generator-2")
        killed_s = time.time()
        time.sleep(TAKEOVER_S_MAX + 3)
        bench.check_the_books()
        took_s = {
            each: min((at for at in bench.answered_s(each) if at > killed_s + 0.2), default=float("inf")) - killed_s
            for each in owned
        }
    print("\ntakeover after kill -9, s by partition:", {each: round(seconds, 2) for each, seconds in took_s.items()})
    assert max(took_s.values()) <= TAKEOVER_S_MAX


def kill_in_transaction(bench: Rig, victim: ServiceProcess, name: str) -> list[int]:
    """Kills it once its coordinator says that offsets are in its open transaction; returns the partitions that it owned."""
    owned = [partition for partition, slot in bench.owners().items() if slot == name]
    assert owned, "it has no partition"
    for _ in range(TRIES_MAX):
        victim.pause()
        time.sleep(0.01)  # what it had already sent is served
        found = describe_transaction(bench.kafka.bootstrap, transactional_id(bench.group, name))
        if found is not None and found.holds_offsets:
            victim.kill()
            return owned
        victim.resume()
        time.sleep(0.02)
    raise AssertionError("it was never inside a transaction that holds offsets")
