"""A broker in memory, for tests: topics, consumer groups, commits with metadata, transactions.

It keeps records in order, rebalances cooperatively inside `poll`, stores committed positions and
refuses commits of a member that left. Transactional ids fence; records of open and aborted
transactions are invisible, and open transactions block offsets. Absent: retention, session
time-outs (`expel` replaces them), the Java partitioner.
"""

from carpool.kafka.memory.broker import MemoryBroker as MemoryBroker
from carpool.kafka.memory.consumer import MemoryConsumer as MemoryConsumer
from carpool.kafka.memory.producers import MemoryProducer as MemoryProducer
from carpool.kafka.memory.producers import (
    MemoryTransactionalProducer as MemoryTransactionalProducer,
)
