"""Runs a service as a process: logs, metrics, HTTP pages, signals, the loop."""

from __future__ import annotations

import gc
import os
import signal
import sys
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from types import FrameType

import msgspec
import structlog

from carpool.clock import Clock, SystemClock
from carpool.errors import CarpoolError
from carpool.kafka.checks import DeliveryName, Deployment
from carpool.kafka.client_config import EMBEDDED_FETCH_WAIT_MS
from carpool.kafka.deployment import WATCH_S, DeploymentWatch, check_deployment, require_fit
from carpool.kafka.fencing import transactional_id
from carpool.kafka.librdkafka import (
    LibrdkafkaConsumer,
    LibrdkafkaProducer,
    LibrdkafkaTransactionalProducer,
)
from carpool.kafka.librdkafka.namesake import configured_instance_id, wait_until_name_is_free
from carpool.kafka.librdkafka.purge import PURGE_S, ProcessedRecordsPurge
from carpool.kafka.settings import KafkaSettings
from carpool.loop.delivery.at_least_once import AtLeastOnceDelivery
from carpool.loop.delivery.delivery import Delivery, LoopParts, MakeDelivery
from carpool.loop.delivery.exactly_once import ExactlyOnceDelivery
from carpool.loop.loop import Loop
from carpool.loop.priority.intake_queues import Intake, PriorityClass
from carpool.loop.refusal import Refusal
from carpool.loop.retry import FailureLimits
from carpool.loop.stage import R, Stage
from carpool.telemetry.http import TelemetryServer
from carpool.telemetry.logs import configure_logs
from carpool.telemetry.metrics import Metrics
from carpool.telemetry.settings import HttpSettings, LogSettings
from carpool.tracing.setup import make_tracer
from schemas.answer import Stage as StageName
from schemas.topics import RETRY_TOPICS, TOPICS, Topic, is_batch

log = structlog.get_logger()

STALLED_US = 10_000_000
DRAIN_US = 30_000_000
SWITCH_S = 0.0005
"""How long a thread keeps the interpreter while others want it.

A query crosses many threads, and the polling thread releases the interpreter at every record. With
Python's default of 5 ms, one busy thread delays all others.
"""

COMMIT_INTERVAL_MS = 20
"""Longest pause between two transactions; it grows with the rate of records."""
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

INTERACTIVE_WEIGHT = 16
"""Records of the class interactive that are taken in for one of batch, while both have some."""
STEPS_WEIGHT = 8
"""Bytes of steps of workflows, and of retries, that are taken in for one of new questions."""
BATCH_HELD_SHARE = 0.25
"""Largest share of class batch in the queries that a service has in progress."""
BATCH_CPU_WAIT_US_MAX = 120
"""Mean wait for a CPU above which less batch work is taken in while interactive queries come."""


def of_all_topics(intake: Intake[R], topics: Sequence[Topic], queries_max: int) -> Intake[R]:
    """Returns the intake of all topics of a service; `intake` reads the first one.

    Those of the class `batch` have a share of `queries_max`, the queries that the service takes in.
    """
    batch_max = max(1, int(BATCH_HELD_SHARE * queries_max))
    extra_classes = tuple(
        PriorityClass(
            topic=topic.name,
            weight=_weight(topic.name),
            unfinished_max=batch_max if is_batch(topic.name) else None,
            cpu_wait_us_max=BATCH_CPU_WAIT_US_MAX if is_batch(topic.name) else 0,
        )
        for topic in topics[1:]
    )
    return replace(intake, weight=_weight(topics[0].name), extra_classes=extra_classes)


def _weight(topic: str) -> int:
    weight = 1 if is_batch(topic) else INTERACTIVE_WEIGHT
    return weight * STEPS_WEIGHT if topic in RETRY_TOPICS else weight


def run_service(
    *,
    name: StageName,
    intake: Intake[R],
    build_stage: Callable[[Metrics, Clock], Stage[R]],
    kafka: KafkaSettings,
    http: HttpSettings,
    logs: LogSettings,
) -> None:
    """Runs the service `name` until SIGTERM or SIGINT, which drain it.

    A second signal ends the process immediately. Blocks. Raises `CarpoolError`.
    """
    configure_logs(service=name, level=logs.level)
    clock, metrics, group = SystemClock(), Metrics(), kafka.group_of(name)
    tracer = make_tracer(service=name, group=group)
    deployment = _checked(kafka, name, group, intake.topics, Refusal(clock))
    kafka = _fetching_in_time(kafka, deployment)
    loop = Loop(
        name=name,
        group=group,
        intake=intake,
        stage=build_stage(metrics, clock),
        consumer=make_consumer(kafka, group, clock, deployment.delivery),
        make_delivery=make_delivery(kafka, group, deployment.delivery),
        clock=clock,
        metrics=metrics,
        tracer=tracer,
        limits=FailureLimits(attempts_max=kafka.attempts_max),
        rests=not deployment.has_transactions,
    )
    _watch(kafka, name, group, deployment, loop)
    server = _serve_pages(http, loop, metrics, clock)
    _stop_on_signals(loop.stop)
    instance_id = configured_instance_id(kafka) if deployment.delivery == "exactly_once" else None
    log.info(
        "starting",
        bootstrap=kafka.bootstrap,
        prefix=kafka.prefix,
        topics=intake.topics,
        delivery=deployment.delivery,
        instance_id=instance_id,
        promise=deployment.promise,
        http_port=server.port,
    )
    try:
        _run(loop, kafka, group, instance_id)
    finally:
        tracer.close()
        server.close()


def _checked(
    kafka: KafkaSettings, name: StageName, group: str, inputs: Sequence[str], refusal: Refusal
) -> Deployment:
    """Returns the deployment, which fits; logs what may lose work later. Raises `ConfigError`."""

    def check() -> Deployment:
        return check_deployment(
            kafka, kafka.delivery, TOPICS, group=group, inputs=inputs, service=name
        )

    deployment = refusal.insist(check, time.sleep)
    assert deployment is not None, "nothing stops it but an error, or the end of the process"
    for warning in deployment.warnings:
        log.warning(warning)
    require_fit(deployment)
    return deployment


def _fetching_in_time(kafka: KafkaSettings, deployment: Deployment) -> KafkaSettings:
    if deployment.has_transactions:
        return kafka
    # The embedded broker: new records end no fetch.
    fetch_wait = {"fetch.wait.max.ms": EMBEDDED_FETCH_WAIT_MS}
    return msgspec.structs.replace(kafka, librdkafka=fetch_wait | kafka.librdkafka)


def _watch(
    kafka: KafkaSettings, name: StageName, group: str, deployment: Deployment, loop: Loop[R]
) -> None:
    """Starts the threads that delete processed records, and that look at the topics."""
    if deployment.has_transactions:  # the embedded broker cannot delete records
        _repeat(ProcessedRecordsPurge(kafka, loop.positions.committed_offsets).step, PURGE_S)
    _repeat(DeploymentWatch(kafka, TOPICS, group, name, deployment).step, WATCH_S)


def _run(loop: Loop[R], kafka: KafkaSettings, group: str, instance_id: str | None) -> None:
    sys.setswitchinterval(SWITCH_S)
    # A collection over all imported objects would stop every thread for a quarter of a second.
    gc.freeze()
    try:
        if instance_id is not None:
            loop.insist(lambda: wait_until_name_is_free(kafka, group, instance_id, loop.pause))
        loop.run(drain_us=DRAIN_US)
    except CarpoolError as error:
        log.error("stopped by an error", error=str(error))
        raise
    log.info("stopped")


def _repeat(step: Callable[[], None], pause_s: float) -> None:
    """Calls `step` again and again on a thread of its own, which ends with the process."""

    def run() -> None:
        while True:
            time.sleep(pause_s)
            step()

    threading.Thread(target=run, name=step.__qualname__, daemon=True).start()


def _serve_pages(
    http: HttpSettings, loop: Loop[R], metrics: Metrics, clock: Clock
) -> TelemetryServer:
    return TelemetryServer(
        host=http.host,
        port=http.port,
        registry=metrics.registry,
        is_alive=lambda: clock.now_us() - loop.last_step_us < STALLED_US,
        not_ready=loop.not_ready,
        notes=loop.notes,
    )


def _stop_on_signals(stop: Callable[[], None]) -> None:
    """Drains at the first SIGTERM or SIGINT, and ends the process at the second."""
    seen = 0

    def handle(number: int, frame: FrameType | None) -> None:
        nonlocal seen
        seen += 1
        if seen > 1:
            os._exit(128 + number)
        stop()

    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, handle)


def make_consumer(
    settings: KafkaSettings, group: str, clock: Clock, delivery: DeliveryName
) -> LibrdkafkaConsumer:
    """Returns a member of the group. With transactions, it fences the member it takes over from."""
    own = configured_instance_id(settings) if delivery == "exactly_once" else None
    return LibrdkafkaConsumer(settings, group, clock, own_instance_id=own)


def make_delivery(settings: KafkaSettings, group: str, delivery: DeliveryName) -> MakeDelivery:
    """Returns the function with which the loop makes its delivery."""
    make_hint_producer = partial(LibrdkafkaProducer, settings, BEST_EFFORT)

    def at_least_once(parts: LoopParts) -> Delivery:
        return AtLeastOnceDelivery(
            parts,
            make_producer=partial(LibrdkafkaProducer, settings),
            make_hint_producer=make_hint_producer,
            commit_interval_ms=OFFSETS_INTERVAL_MS,
        )

    def exactly_once(parts: LoopParts) -> Delivery:
        own = configured_instance_id(settings)
        name = transactional_id(group, own)
        return ExactlyOnceDelivery(
            parts,
            producer=LibrdkafkaTransactionalProducer(settings, name),
            make_hint_producer=make_hint_producer,
            instance_id=own,
            commit_interval_ms=COMMIT_INTERVAL_MS,
            call_us_max=(settings.request_timeout_ms + CALL_MARGIN_MS) * 1_000,
        )

    return exactly_once if delivery == "exactly_once" else at_least_once
