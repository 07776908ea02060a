"""Makes the consumer and the delivery of a service on real brokers."""

from __future__ import annotations

from carpool.clock import Clock
from carpool.kafka.checks import DeliveryName
from carpool.kafka.fencing import transactional_id
from carpool.kafka.librdkafka import (
    LibrdkafkaConsumer,
    LibrdkafkaProducer,
    LibrdkafkaTransactionalProducer,
)
from carpool.kafka.librdkafka.namesake import configured_instance_id
from carpool.kafka.settings import KafkaSettings
from carpool.loop.delivery.at_least_once import AtLeastOnceDelivery
from carpool.loop.delivery.delivery import Delivery, DeliveryContext, MakeDelivery
from carpool.loop.delivery.exactly_once import ExactlyOnceDelivery

COMMIT_INTERVAL_MS = 20
"""Longest pause between two transactions; it grows with the rate of questions."""
OFFSETS_INTERVAL_MS = 100
"""Pause between two commits of offsets under at-least-once."""
CALL_MARGIN_MS = 5_000
"""A call of a transaction counts as stuck this long after its time-out."""
BEST_EFFORT = {
    "enable.idempotence": False,
    "acks": "1",
    "message.timeout.ms": 10_000,
    "queue.buffering.max.messages": 10_000,
    "linger.ms": 10,
}


def make_consumer(
    settings: KafkaSettings, group: str, clock: Clock, delivery: DeliveryName
) -> LibrdkafkaConsumer:
    """Returns a member of the group. With transactions, it fences the member it takes over from."""
    if delivery == "at_least_once":
        return LibrdkafkaConsumer(settings, group, clock)
    return LibrdkafkaConsumer(
        settings, group, clock, own_instance_id=configured_instance_id(settings)
    )


def make_delivery(settings: KafkaSettings, group: str, delivery: DeliveryName) -> MakeDelivery:
    """Returns the function with which the loop makes its delivery."""

    def make_hint_producer() -> LibrdkafkaProducer:
        return LibrdkafkaProducer(settings, BEST_EFFORT)

    def at_least_once(context: DeliveryContext) -> Delivery:
        return AtLeastOnceDelivery(
            context,
            make_producer=lambda: LibrdkafkaProducer(settings),
            make_hint_producer=make_hint_producer,
            commit_interval_ms=OFFSETS_INTERVAL_MS,
        )

    def exactly_once(context: DeliveryContext) -> Delivery:
        instance_id = configured_instance_id(settings)
        return ExactlyOnceDelivery(
            context,
            make_producer=lambda: LibrdkafkaTransactionalProducer(
                settings, transactional_id(group, instance_id)
            ),
            make_hint_producer=make_hint_producer,
            instance_id=instance_id,
            commit_interval_ms=COMMIT_INTERVAL_MS,
            call_us_max=(settings.request_timeout_ms + CALL_MARGIN_MS) * 1_000,
        )

    return exactly_once if delivery == "exactly_once" else at_least_once
