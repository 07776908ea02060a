"""What both deliveries share: finished work and hints come in, one thread commits them."""

from __future__ import annotations

import threading
from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Callable

import structlog

from carpool.errors import CarpoolError
from carpool.kafka.clients import ProducerClient
from carpool.kafka.records import Output
from carpool.loop.delivery.delivery import DeliveryContext
from carpool.loop.delivery.hints import Hints
from carpool.loop.stage import Done

log = structlog.get_logger()

IDLE_WAIT_S = 0.05
JOIN_S = 5.0


class DeliveryThread(ABC):
    """Runs `step` on a thread of its own until `close`. See `Delivery` for the contract."""

    def __init__(
        self, context: DeliveryContext, make_hint_producer: Callable[[], ProducerClient]
    ) -> None:
        self._context = context
        self._in_flight = context.in_flight
        self._clock = context.clock
        self._hints = Hints(make_hint_producer, context.metrics)
        self._submitted: deque[Done] = deque()
        self._wake = threading.Event()
        self._closing = threading.Event()
        self._stop_by_us: int | None = None
        self._thread = threading.Thread(target=self._run, name="delivery", daemon=True)

    @abstractmethod
    def open(self) -> None:
        """Makes the producer."""

    @abstractmethod
    def step(self, wait_s_max: float = IDLE_WAIT_S) -> None:
        """Does one round. Waits for work for at most `wait_s_max` seconds."""

    @property
    @abstractmethod
    def backlog(self) -> int:
        """See `Delivery.backlog`."""

    @abstractmethod
    def _may_end(self) -> bool:
        """Whether the thread may end after `close`."""

    @abstractmethod
    def _close_clients(self) -> None:
        """Closes the producer."""

    def start(self) -> None:
        """See `Delivery.start`."""
        self.open()
        self._thread.start()

    def submit(self, done: Done) -> None:
        """See `Delivery.submit`."""
        self._submitted.append(done)
        self._wake_up()

    def hint(self, output: Output) -> None:
        """See `Delivery.hint`."""
        if self._hints.add(output):
            self._wake_up()

    def close(self, until_us: int) -> bool:
        """See `Delivery.close`."""
        self._stop_by_us = until_us
        self._closing.set()
        self._wake.set()
        self._thread.join(max(0.0, (until_us - self._clock.now_us()) / 1_000_000) + JOIN_S)
        return not self.backlog

    def _wake_up(self) -> None:
        self._wake.set()

    def _run(self) -> None:
        try:
            while not (self._closing.is_set() and (self._is_late() or self._may_end())):
                self.step()
        except Exception as error:  # the loop ends the process
            log.exception("delivery failed")
            self._context.fail(
                error
                if isinstance(error, CarpoolError)
                else CarpoolError(f"delivery failed: {error!r}")
            )
        finally:
            self._hints.close()
            self._close_clients()

    def _is_late(self) -> bool:
        return self._stop_by_us is not None and self._clock.now_us() >= self._stop_by_us

    def _reopen(self, done: Done) -> None:
        """Discards work of a revoked partition; units that are still assigned start again."""
        units = self._in_flight.reopen(done)
        self._context.metrics.delivery.done_discarded.inc(len(done.parts) - len(units))
        self._context.reoffer(units)
