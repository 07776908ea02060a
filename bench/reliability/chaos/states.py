"""Changes of the deployment that pass, or that services must follow: begins and ends them."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial

from confluent_kafka import KafkaException
from confluent_kafka.admin import (
    AdminClient,
    AlterConfigOpType,
    ConfigEntry,
    ConfigResource,
    NewPartitions,
    ResourceType,
)

from bench.core.stack import member_names
from bench.reliability.chaos.llm_calls import LlmStandIn
from bench.reliability.chaos.network import PassingFaults
from bench.reliability.chaos.plan import MEMBERS, PlannedFault
from bench.reliability.chaos.supervisor import ProcessSupervisor
from carpool.errors import RetryableError
from carpool.kafka.settings import KafkaSettings
from schemas.topics import DEAD_LETTER_SUFFIX, TOPICS

TIMEOUT_S = 10.0
SMALL_BYTES = 150
"""A limit that no record keeps, but the markers of transactions do."""
SESSION_S = 7.0
"""After it, the brokers count the members of a killed service out, and its group can be deleted."""
LIMITS_BYTES = {topic.name: topic.max_message_bytes for topic in TOPICS}


@dataclass(slots=True)
class StateFaults(PassingFaults):
    """The changes in progress. `admin`: of the brokers themselves, past proxies."""

    admin: AdminClient
    kafka: KafkaSettings
    supervisor: ProcessSupervisor
    stand_ins: Mapping[str, LlmStandIn]

    def inject(self, fault: PlannedFault, now_s: float) -> str | None:
        """Begins a change; returns what is changed. None: it cannot be changed now. Blocks."""
        victim = fault.victims[0]
        end_s, end = now_s + fault.down_s, None
        try:
            match fault.kind:
                case "lower a limit":
                    self._limit(victim, SMALL_BYTES)
                    end = partial(self._limit, victim, LIMITS_BYTES[victim])
                case "add partitions":
                    # A letter needs its partition first.
                    for name in (victim + DEAD_LETTER_SUFFIX, victim):
                        self._add_partition(name)
                case "delete a group":
                    members = member_names(victim, MEMBERS)
                    if not all(map(self.supervisor.is_up, members)):
                        return None
                    for member in members:
                        self.supervisor.processes[member].process.kill()
                        self.supervisor.note(member, "dead", now_s, math.inf)
                    end_s, end = now_s + SESSION_S, partial(self._delete, victim, members)
                case "odd LLM server":
                    self.stand_ins[victim].answer_as("odd")
                    end = partial(self.stand_ins[victim].answer_as, "none")
        except (KafkaException, RetryableError):
            return None
        if end is not None:
            self._ends.append((end_s, end))
        return victim

    def _limit(self, topic: str, size_bytes: int) -> None:
        change = ConfigEntry(
            "max.message.bytes", str(size_bytes), incremental_operation=AlterConfigOpType.SET
        )
        resource = ConfigResource(ResourceType.TOPIC, topic, incremental_configs=[change])
        (altered,) = self.admin.incremental_alter_configs([resource]).values()
        altered.result(TIMEOUT_S)

    def _add_partition(self, topic: str) -> None:
        found = self.admin.list_topics(topic, timeout=TIMEOUT_S).topics[topic]
        wanted = NewPartitions(topic, len(found.partitions) + 1)
        self.admin.create_partitions([wanted])[topic].result(TIMEOUT_S)

    def _delete(self, service: str, members: list[str]) -> None:
        group = self.kafka.group_of(service)
        self.admin.delete_consumer_groups([group])[group].result(TIMEOUT_S)
        for member in members:
            self.supervisor.processes[member].until_s = 0.0
