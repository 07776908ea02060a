"""Clients of real brokers, through librdkafka (confluent-kafka)."""

from carpool.kafka.librdkafka.consumer import LibrdkafkaConsumer
from carpool.kafka.librdkafka.producer import LibrdkafkaProducer
from carpool.kafka.librdkafka.transactional import LibrdkafkaTransactionalProducer

__all__ = [
    "LibrdkafkaConsumer",
    "LibrdkafkaProducer",
    "LibrdkafkaTransactionalProducer",
]
