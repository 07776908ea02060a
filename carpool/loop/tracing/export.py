"""Exports spans to a collector: a bounded queue and a thread. Excess spans are dropped."""

from __future__ import annotations

import queue
import threading
import time

import structlog
from opentelemetry.context import Context
from opentelemetry.sdk.trace import ReadableSpan, Span, SpanProcessor
from opentelemetry.sdk.trace.export import SpanExporter, SpanExportResult

from carpool.telemetry.metrics import Metrics

log = structlog.get_logger()

QUEUE_MAX = 8_192
BATCH_MAX = 512
SEND_AFTER_S = 0.5
CLOSE_S = 3.0


class SpanQueue(SpanProcessor):
    """Exports ended spans on a thread of its own. `on_end` never blocks."""

    def __init__(
        self,
        exporter: SpanExporter,
        metrics: Metrics,
        *,
        queue_max: int = QUEUE_MAX,
        send_after_s: float = SEND_AFTER_S,
    ) -> None:
        """`send_after_s`: how long spans wait for a full batch."""
        self._exporter = exporter
        self._outcomes = metrics.loop.spans
        self._send_after_s = send_after_s
        self._spans: queue.Queue[ReadableSpan] = queue.Queue(queue_max)
        self._closing = threading.Event()
        self._is_accepted = True
        self._thread = threading.Thread(target=self._run, name="spans", daemon=True)
        self._thread.start()

    def on_start(self, span: Span, parent_context: Context | None = None) -> None:
        """Does nothing."""

    def on_end(self, span: ReadableSpan) -> None:
        """Queues a span; drops it when the queue is full."""
        try:
            self._spans.put_nowait(span)
        except queue.Full:
            self._outcomes.labels(outcome="dropped").inc()

    def close(self) -> None:
        """Exports what waits, for a few seconds at most; the rest is dropped."""
        self._closing.set()
        self._thread.join(CLOSE_S)
        self._exporter.shutdown()  # aborts a running export
        left = self._spans.qsize()
        if left:
            self._outcomes.labels(outcome="dropped").inc(left)
            log.warning("spans were not exported before the end", spans=left)

    def _run(self) -> None:
        while not (self._closing.is_set() and self._spans.empty()):
            batch = self._gather()
            if batch:
                self._send(batch)

    def _gather(self) -> list[ReadableSpan]:
        batch: list[ReadableSpan] = []
        until_s = time.monotonic() + self._send_after_s
        while len(batch) < BATCH_MAX:
            wait_s = 0.0 if self._closing.is_set() else until_s - time.monotonic()
            try:
                batch.append(
                    self._spans.get(timeout=wait_s) if wait_s > 0 else self._spans.get_nowait()
                )
            except queue.Empty:
                break
        return batch

    def _send(self, batch: list[ReadableSpan]) -> None:
        try:
            is_accepted = self._exporter.export(batch) is SpanExportResult.SUCCESS
        except Exception:  # an exporter must not stop the service
            log.debug("exporting spans failed", exc_info=True)
            is_accepted = False
        self._outcomes.labels(outcome="exported" if is_accepted else "failed").inc(len(batch))
        if is_accepted != self._is_accepted:
            self._is_accepted = is_accepted
            if is_accepted:
                log.info("traces are exported again")
            else:
                log.warning("the collector rejects traces; they are dropped until it accepts them")
