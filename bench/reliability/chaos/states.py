"""Changes of the deployment that pass, or that services must follow: begins and ends them."""

from __future__ import annotations

import math
import subprocess
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial

from confluent_kafka import KafkaError, KafkaException
from confluent_kafka import TopicPartition as RawPartition
from confluent_kafka.admin import (
    AdminClient,
    AlterConfigOpType,
    ConfigEntry,
    ConfigResource,
    NewPartitions,
    ResourceType,
)

from bench.core.stack import SERVICES, member_names
from bench.reliability.chaos.files import DeployedFiles
from bench.reliability.chaos.llm_calls import LlmStandIn
from bench.reliability.chaos.network import PassingFaults
from bench.reliability.chaos.plan import MEMBERS, PlannedFault
from bench.reliability.chaos.supervisor import ProcessSupervisor
from carpool.clock import SystemClock
from carpool.errors import RetryableError
from carpool.kafka.librdkafka.committed import committed_so_far
from carpool.kafka.settings import KafkaSettings
from carpool.kafka.topic_reader import TopicReader
from schemas.codec import decode_retrieval
from schemas.topics import DEAD_LETTER_SUFFIX, RETRIEVALS, TOPICS

TIMEOUT_S = 10.0
SMALL_BYTES = 150
"""A limit that no record keeps, but the markers of transactions do."""
LIMITS_BYTES = {topic.name: topic.max_message_bytes for topic in TOPICS}


@dataclass(slots=True)
class StateFaults(PassingFaults):
    """The changes in progress. `kafka`: with the brokers' own addresses, past the proxies.

    Each call has an admin client of its own, because one that lives long asks the coordinator that
    it once knew. The client must live until its reply is there.
    """

    kafka: KafkaSettings
    supervisor: ProcessSupervisor
    stand_ins: Mapping[str, LlmStandIn]
    files: DeployedFiles
    removed: dict[str, str] = field(default_factory=dict)
    """The input records whose retrievals were removed, perhaps after they were answered; each with
    its query id."""
    deleted_ms: list[int] = field(default_factory=list, init=False)
    """When a group was deleted, epoch milliseconds."""
    _is_removed: bool = field(default=False, init=False)

    def _admin(self) -> AdminClient:
        return AdminClient({"bootstrap.servers": self.kafka.bootstrap, "log_level": 0})

    def inject(self, fault: PlannedFault, now_s: float) -> str | None:
        """Begins a change; returns what is changed. None: it cannot be changed now. Blocks."""
        services = fault.victims if set(fault.victims) <= set(SERVICES) else ()
        members = [member_names(each, MEMBERS) for each in sorted(services)]
        if not all(self.supervisor.is_up(name) for each in members for name in each):
            return None
        try:
            end = self._begin(fault, members)
        except (KafkaException, RetryableError, TimeoutError):
            return None
        if end is not None:
            self._ends.append((now_s + fault.down_s, end))
        return fault.victims[0]

    def _begin(
        self, fault: PlannedFault, members: Sequence[Sequence[str]]
    ) -> Callable[[], None] | None:
        """Returns what ends the change; None: it has no end. `members`: of each service it hits."""
        victim = fault.victims[0]
        match fault.kind:
            case "lower a limit":
                self._limit(victim, SMALL_BYTES)
                return partial(self._limit, victim, LIMITS_BYTES[victim])
            case "add partitions":
                # A letter needs its partition first.
                for name in (victim + DEAD_LETTER_SUFFIX, victim):
                    self._add_partition(name)
            case "delete a group" | "remove records":
                self._kill(members[0], math.inf)
                act = self._delete if fault.kind == "delete a group" else self._remove
                return partial(act, self.kafka.group_of(victim))
            case "newer index":
                self.files.change_index()
                first, then = zip(*members, strict=True)  # a member of each service, then the other
                self._kill(first)
                return partial(self._kill, then)
            case "newer program":
                self.files.change_programs()
                generators, groupers = members
                self._kill(generators)  # what a new grouper begins needs new generators
                return partial(self._kill, groupers)
            case "odd LLM server":
                self.stand_ins[victim].answer_as("odd")
                return partial(self.stand_ins[victim].answer_as, "none")
        return None

    def _kill(self, members: Iterable[str], until_s: float = 0.0) -> None:
        for member in members:
            self.supervisor.kill(member, until_s)

    def _limit(self, topic: str, size_bytes: int) -> None:
        change = ConfigEntry(
            "max.message.bytes", str(size_bytes), incremental_operation=AlterConfigOpType.SET
        )
        resource = ConfigResource(ResourceType.TOPIC, topic, incremental_configs=[change])
        admin = self._admin()
        (altered,) = admin.incremental_alter_configs([resource]).values()
        altered.result(TIMEOUT_S)

    def _add_partition(self, topic: str) -> None:
        admin = self._admin()
        found = admin.list_topics(topic, timeout=TIMEOUT_S).topics[topic]
        wanted = NewPartitions(topic, len(found.partitions) + 1)
        admin.create_partitions([wanted])[topic].result(TIMEOUT_S)

    def _delete(self, group: str) -> None:
        admin = self._admin()
        try:
            admin.delete_consumer_groups([group])[group].result(TIMEOUT_S)
        except KafkaException as error:
            if error.args[0].code() != KafkaError.GROUP_ID_NOT_FOUND:  # an earlier try did it
                raise
        self.deleted_ms.append(SystemClock().now_us() // 1_000)
        self._bring_back()

    def _remove(self, group: str) -> None:
        """Removes what waits in the partition with most of it, and accepts that it is lost."""
        if not self._is_removed:  # else an earlier try did it
            self._remove_waiting(group)
            self._is_removed = True
        command = [sys.executable, "-m", "carpool", "groups", "accept-loss", "--yes"]
        command += ["--bootstrap", self.kafka.bootstrap]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        if done.returncode:
            raise RetryableError(f"the loss is not accepted: {done.stderr}")
        self._is_removed = False
        self._bring_back()

    def _remove_waiting(self, group: str) -> None:
        with TopicReader(self.kafka, SystemClock(), name="bench-removed") as reader:
            places = reader.partitions(RETRIEVALS.name)
            read = {
                at: raw.offset for at, raw in committed_so_far(self.kafka, group, places).items()
            }
            waiting = {at: reader.bounds(at)[1] - read[at] for at in places if read[at] >= 0}
            if not waiting:
                raise RetryableError(f"the group {group} has committed no offset")
            at = max(waiting, key=waiting.__getitem__)
            for record in reader.read_to_end([at]):
                if record.source.offset >= read[at]:
                    found = decode_retrieval(record.value or b"", record.headers)
                    if found.source is not None:
                        self.removed[found.source.place] = (record.key or b"").decode()
        gone = RawPartition(at.topic, at.partition, read[at] + waiting[at])
        admin = self._admin()
        admin.delete_records([gone])[gone].result(TIMEOUT_S)

    def _bring_back(self) -> None:
        for each in self.supervisor.processes.values():
            each.until_s = 0.0 if each.until_s == math.inf else each.until_s
