"""The threads of a stage: how they fail, when their parts are open, and how they end."""

from __future__ import annotations

import threading

import pytest
from structlog.testing import capture_logs

from carpool import worker
from carpool.errors import CarpoolError, ConfigError
from tests.waiting import WAIT_S, wait_until


class Rig:
    """A worker whose thread opens the parts, and ends, when the test lets it."""

    def __init__(self) -> None:
        self.parts: list[str] = []
        self.failures: list[CarpoolError] = []
        self.may_open, self.may_end = threading.Event(), threading.Event()
        self.worker = worker.Worker[list[str]]("it opens", lambda parts: parts.append("closed"))

    def run(self) -> None:
        if self.worker.open(self.open) is not None:
            assert self.may_end.wait(WAIT_S)

    def open(self) -> list[str]:
        assert self.may_open.wait(WAIT_S)
        return self.parts

    def wait_until_open(self) -> None:
        self.may_open.set()
        wait_until(lambda: self.worker.parts is self.parts)


def test_it_is_ready_with_its_parts_and_closes_them_once_after_its_threads() -> None:
    rig = Rig()
    rig.worker.start(rig.failures.append, run=rig.run)
    assert rig.worker.not_ready() == ("it opens",)
    rig.wait_until_open()
    assert rig.worker.not_ready() == ()
    for _ in range(2):
        rig.worker.close(rig.may_end.set)
    assert (rig.parts, rig.failures) == (["closed"], [])


@pytest.mark.parametrize("error", [ConfigError("set it"), ZeroDivisionError("oops")])
def test_a_thread_that_raises_ends_the_service_and_no_other_thread(error: Exception) -> None:
    def broken() -> None:
        raise error

    rig = Rig()
    with capture_logs() as logs:
        rig.worker.start(rig.failures.append, run=rig.run, broken=broken)
        wait_until(lambda: bool(rig.failures))
    (failure,) = rig.failures
    if isinstance(error, CarpoolError):
        assert (failure, logs) == (error, [])
    else:
        assert "'broken' failed with ZeroDivisionError: oops" in str(failure)
        assert [each["exc_info"] for each in logs] == [error]
    rig.wait_until_open()
    assert rig.worker.not_ready() == (str(failure),)
    rig.worker.close(rig.may_end.set)


def test_a_close_leaves_its_parts_to_a_thread_that_hangs_and_closes_those_that_open_later(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(worker, "CLOSE_S", 0.01)
    hanging, opening = Rig(), Rig()
    for rig in (hanging, opening):
        rig.worker.start(rig.failures.append, run=rig.run)
    hanging.wait_until_open()
    for rig in (hanging, opening):
        rig.worker.close(lambda: None)
        assert rig.parts == []
        rig.may_end.set()
    opening.may_open.set()
    wait_until(lambda: opening.parts == ["closed"])
    assert (opening.worker.parts, opening.failures) == (None, [])
