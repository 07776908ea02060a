"""A broker in memory, for tests: topics, consumer groups, commits with metadata, transactions.

It keeps records in order, rebalances cooperatively inside `poll`, stores committed positions and
refuses commits of a member that left. Transactional ids fence; records of open and aborted
transactions are invisible, and open transactions block offsets. Absent: retention, the
time-outs of sessions (`expel` replaces them) and transactions, the Java partitioner.
"""

from tests.memory_broker.broker import MemoryBroker as MemoryBroker
from tests.memory_broker.consumer import MemoryConsumer as MemoryConsumer
from tests.memory_broker.producers import MemoryProducer as MemoryProducer
from tests.memory_broker.producers import MemoryTransactionalProducer as MemoryTransactionalProducer
