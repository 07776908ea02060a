"""Clients of real brokers, through librdkafka (confluent-kafka)."""

from carpool.kafka.librdkafka.consumer import LibrdkafkaConsumer as LibrdkafkaConsumer
from carpool.kafka.librdkafka.producer import LibrdkafkaProducer as LibrdkafkaProducer
from carpool.kafka.librdkafka.transactional import (
    LibrdkafkaTransactionalProducer as LibrdkafkaTransactionalProducer,
)
