"""A broker in memory, for tests of the loop: topics, consumer groups, commits with metadata,
transactions.

It keeps what the loop relies on: records in order, cooperative rebalances inside `poll`, positions
that survive members, commits refused to a member that left; transactional ids that fence, records
of open and aborted transactions that are invisible, offsets that they block. Absent: retention,
session time-outs (`expel` stands for one), the Java partitioner.
"""

from carpool.kafka.memory.broker import MemoryBroker as MemoryBroker
from carpool.kafka.memory.consumer import MemoryConsumer as MemoryConsumer
from carpool.kafka.memory.producers import MemoryProducer as MemoryProducer
from carpool.kafka.memory.producers import (
    MemoryTransactionalProducer as MemoryTransactionalProducer,
)
