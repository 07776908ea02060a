"""Runs one service as a process: logs, metrics, HTTP pages, signals, the loop. Everything that services have in common."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable
from types import FrameType

import structlog

from carpool.clock import Clock, SystemClock
from carpool.errors import CarpoolError
from carpool.kafka.librdkafka import LibrdkafkaConsumer, LibrdkafkaProducer
from carpool.kafka.loop import Intake, Loop
from carpool.kafka.settings import KafkaSettings
from carpool.kafka.stage import R, Stage
from carpool.telemetry.http import TelemetryServer
from carpool.telemetry.logs import configure_logs
from carpool.telemetry.metrics import Metrics
from carpool.telemetry.settings import HttpSettings, LogSettings
from schemas.answer import Stage as StageName

log = structlog.get_logger()

STALLED_US = 10_000_000
DRAIN_US = 30_000_000
BEST_EFFORT = {
    "enable.idempotence": False,
    "acks": "1",
    "message.timeout.ms": 10_000,
    "queue.buffering.max.messages": 10_000,
}


def run_service(
    *,
    name: StageName,
    intake: Intake[R],
    build_stage: Callable[[Metrics, Clock], Stage[R]],
    kafka: KafkaSettings,
    http: HttpSettings,
    logs: LogSettings,
) -> None:
    """Runs the service `name` until SIGTERM or SIGINT, which drain it; a second one ends the process at once.

    Blocks. Raises `CarpoolError` that says what to do when the service cannot start or has to give up.
    """
    configure_logs(service=name, level=logs.level, log_format=logs.format)
    clock = SystemClock()
    metrics = Metrics()
    loop = Loop(
        name=name,
        group=kafka.group_of(name),
        intake=intake,
        stage=build_stage(metrics, clock),
        consumer=LibrdkafkaConsumer(kafka, kafka.group_of(name), clock),
        make_producer=lambda: LibrdkafkaProducer(kafka),
        make_hint_producer=lambda: LibrdkafkaProducer(kafka, BEST_EFFORT),
        clock=clock,
        metrics=metrics,
        commit_interval_ms=kafka.commit_interval_ms,
    )
    server: TelemetryServer | None = None
    if http.port >= 0:
        server = TelemetryServer(
            host=http.host,
            port=http.port,
            registry=metrics.registry,
            is_alive=lambda: clock.now_us() - loop.last_step_us < STALLED_US,
            not_ready=loop.not_ready,
        )
    _stop_on_signals(loop.stop)
    log.info(
        "starting",
        bootstrap=kafka.bootstrap,
        topic=intake.topic,
        delivery=kafka.delivery,
        promise="nothing is lost; after a crash what was in flight may be answered twice, under the same record id",
        http_port=server.port if server else None,
    )
    try:
        loop.run(drain_us=DRAIN_US)
        log.info("stopped")
    except CarpoolError as error:
        log.error("stopped by an error", error=str(error))
        raise
    finally:
        if server is not None:
            server.close()


def _stop_on_signals(stop: Callable[[], None]) -> None:
    """SIGTERM or SIGINT: drain. A second one: end now, without cleaning up."""
    seen = 0

    def handle(number: int, frame: FrameType | None) -> None:
        nonlocal seen
        seen += 1
        if seen > 1:
            os._exit(128 + number)
        stop()

    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, handle)
