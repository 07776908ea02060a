"""The supervisor with real child processes: readiness, restarts, order of the end, and nothing that
outlives it.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from carpool.errors import CarpoolError, ConfigError
from carpool.guard import GuardedProcess
from cli import supervise
from cli.supervise import ChildSpec, Interrupted, Supervisor, restart_delay_s
from tests.waiting import WAIT_S, wait_until


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(supervise, "RESTART_DELAY_S", 0.01)


RUNS_UNTIL_TOLD = """
import signal, sys, time, pathlib
def end(*_):
    with open({log!r}, "a") as file: file.write("{name} ended\\n")
    sys.exit(0)
signal.signal(signal.SIGTERM, end)
pathlib.Path({ready!r}).touch()
while True: time.sleep(0.05)
"""


def spec(
    folder: Path,
    name: str,
    code: str,
    *,
    is_restarted: bool = True,
    probe: Callable[[], str] | None = None,
) -> ChildSpec:
    ready = folder / f"{name}.ready"
    text = code.format(
        name=name, log=str(folder / "order.log"), ready=str(ready), folder=str(folder)
    )
    return ChildSpec(
        name=name,
        command=[sys.executable, "-I", "-c", text],
        environ={"PATH": os.environ["PATH"]},
        log_file=folder / f"{name}.log",
        probe=probe or (lambda: "" if ready.exists() else "not there yet"),
        is_restarted=is_restarted,
    )


def lives(pid: int) -> bool:
    """Whether a process is there and not a zombie: who adopts orphans here may not reap them."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


def pid_of(supervisor: Supervisor, name: str) -> int:
    child = supervisor._parts[name].child
    assert child is not None
    return child.pid


def supervised(notes: list[str] | None = None, ready_timeout_s: float = WAIT_S) -> Supervisor:
    return Supervisor(ready_timeout_s, note=([] if notes is None else notes).append)


def test_children_become_ready_and_end_in_the_order_that_is_asked_for(tmp_path: Path) -> None:
    with supervised() as supervisor:
        for name in ("broker", "model", "grouper"):
            supervisor.start(spec(tmp_path, name, RUNS_UNTIL_TOLD))
        supervisor.wait_ready()
        assert [part.state for part in supervisor.parts()] == ["ready"] * 3
        pids = [pid_of(supervisor, part.spec.name) for part in supervisor.parts()]
        supervisor.stop(["grouper", "model"])
    order = (tmp_path / "order.log").read_text().splitlines()
    assert order == ["grouper ended", "model ended", "broker ended"]
    assert not any(lives(pid) for pid in pids)


def test_a_child_that_crashes_is_started_again_once_what_it_left_behind_is_ended(
    tmp_path: Path,
) -> None:
    leaves = """
import pathlib, subprocess, sys, time
child = subprocess.Popen([sys.executable, "-I", "-c", "import time; time.sleep(600)"])
path = pathlib.Path({folder!r}, "grandchild")
if not path.exists(): path.write_text(str(child.pid))
pathlib.Path({ready!r}).touch()
time.sleep(600)
"""
    notes: list[str] = []
    with supervised(notes) as supervisor:
        supervisor.start(spec(tmp_path, "searcher", leaves))
        supervisor.wait_ready()
        first = pid_of(supervisor, "searcher")
        grandchild = int((tmp_path / "grandchild").read_text())
        os.kill(first, signal.SIGKILL)
        (part,) = supervisor.parts()
        supervisor.watch(lambda: part.restarts == 1 and part.state == "ready")
        assert pid_of(supervisor, "searcher") != first
        wait_until(lambda: not lives(grandchild), "the grandchild is gone")
    assert notes[0].startswith("searcher ended by signal 9; started again in 0.01 s")
    assert notes[1] == "searcher is ready again"


def test_a_child_that_ends_before_it_was_ready_is_an_error_with_the_tail_of_this_run(
    tmp_path: Path,
) -> None:
    (tmp_path / "searcher.log").write_text("the run before\n")
    with supervised() as supervisor, pytest.raises(ConfigError) as ended:  # by its status, 2
        supervisor.start(spec(tmp_path, "searcher", "print('this run'); raise SystemExit(2)"))
        supervisor.wait_ready()
    assert "this run" in str(ended.value) and "the run before" not in str(ended.value)
    assert (tmp_path / "searcher.log.1").read_text() == "the run before\n"


def test_a_child_that_crashes_again_and_again_is_given_up(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    crashes = (
        "import pathlib, time; pathlib.Path({ready!r}).touch(); time.sleep(0.3); "
        "print('out of luck'); raise SystemExit(3)"
    )
    monkeypatch.setattr(supervise, "RESTARTS_MAX", 2)
    with (
        supervised() as supervisor,
        pytest.raises(
            CarpoolError, match=r"status 3 once more, after 2 restarts(?s:.*)out of luck"
        ),
    ):
        supervisor.start(spec(tmp_path, "searcher", crashes))
        supervisor.wait_ready()
        supervisor.watch()


def test_a_log_that_grows_is_rotated_while_its_process_writes_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    talks = """
import pathlib, time
pathlib.Path({ready!r}).touch()
while True: print("word " * 1_000, flush=True); time.sleep(0.005)
"""
    monkeypatch.setattr(supervise, "LOG_BYTES_MAX", 65_536)
    older = tmp_path / "searcher.log.1"
    with supervised() as supervisor:
        supervisor.start(spec(tmp_path, "searcher", talks))
        supervisor.wait_ready()
        supervisor.watch(older.exists)
        log = tmp_path / "searcher.log"
        supervisor.watch(lambda: log.stat().st_size > 0)
        assert "word" in log.read_text()
        assert older.stat().st_size > 65_536


def test_what_cannot_be_restarted_ends_everything(tmp_path: Path) -> None:
    with supervised() as supervisor:
        supervisor.start(spec(tmp_path, "broker", RUNS_UNTIL_TOLD, is_restarted=False))
        supervisor.start(spec(tmp_path, "grouper", RUNS_UNTIL_TOLD))
        supervisor.wait_ready()
        os.kill(pid_of(supervisor, "broker"), signal.SIGKILL)
        with pytest.raises(CarpoolError, match="its records are lost"):
            supervisor.watch()
    assert (tmp_path / "order.log").read_text() == "grouper ended\n"


def test_a_child_that_is_never_ready_is_an_error_that_says_what_it_lacks(tmp_path: Path) -> None:
    with (
        supervised(ready_timeout_s=0.3) as supervisor,
        pytest.raises(
            CarpoolError, match=r"not ready after 0.3 s: no model yet.*up.ready_timeout_s"
        ),
    ):
        supervisor.start(spec(tmp_path, "generator", RUNS_UNTIL_TOLD, probe=lambda: "no model yet"))
        supervisor.wait_ready()


def test_a_patient_child_may_load_for_as_long_as_its_log_grows(tmp_path: Path) -> None:
    loads = """
import time
for shard in range(6): print("shard", shard, flush=True); time.sleep(0.5)
time.sleep(600)
"""
    with supervised(ready_timeout_s=2.0) as supervisor:
        patient = spec(tmp_path, "vLLM", loads, probe=lambda: "is loading the model")
        supervisor.start(replace(patient, is_patient=True))
        with pytest.raises(CarpoolError, match=r"vLLM is not ready after 2 s: is loading"):
            supervisor.wait_ready()
    assert "shard 5" in patient.log_file.read_text(), "only its silence ended it"


def test_a_child_that_will_not_end_is_killed_with_all_that_it_started(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    stubborn = """
import pathlib, signal, subprocess, sys, time
signal.signal(signal.SIGTERM, signal.SIG_IGN)
child = subprocess.Popen([sys.executable, "-I", "-c", "import time; time.sleep(600)"])
pathlib.Path({folder!r}, "grandchild").write_text(str(child.pid))
pathlib.Path({ready!r}).touch()
time.sleep(600)
"""
    notes: list[str] = []
    monkeypatch.setattr(supervise, "STOP_TIMEOUT_S", 0.3)
    with supervised(notes) as supervisor:
        supervisor.start(spec(tmp_path, "model", stubborn))
        supervisor.wait_ready()
        pids = [pid_of(supervisor, "model"), int((tmp_path / "grandchild").read_text())]
    assert notes == ["model did not end within 0.3 s and is killed"]
    wait_until(lambda: not any(lives(pid) for pid in pids), "the group is gone")


def test_the_first_signal_ends_in_order_and_the_second_at_once(tmp_path: Path) -> None:
    stubborn = """
import pathlib, signal, time
signal.signal(signal.SIGTERM, signal.SIG_IGN)
pathlib.Path({ready!r}).touch()
time.sleep(600)
"""
    notes: list[str] = []
    before = signal.getsignal(signal.SIGINT)
    with pytest.raises(Interrupted), supervised(notes) as supervisor:
        supervisor.start(spec(tmp_path, "grouper", stubborn))
        supervisor.start(spec(tmp_path, "broker", stubborn))
        supervisor.wait_ready()
        pids = [pid_of(supervisor, "grouper"), pid_of(supervisor, "broker")]
        threading.Timer(0.1, os.kill, (os.getpid(), signal.SIGINT)).start()
        try:
            supervisor.watch()
        finally:
            # Each would be given minutes, and a note would say that it used them up.
            threading.Timer(0.2, os.kill, (os.getpid(), signal.SIGINT)).start()
    assert notes == []
    assert not any(lives(pid) for pid in pids)
    assert signal.getsignal(signal.SIGINT) is before


def test_children_do_not_outlive_a_supervisor_that_is_killed(tmp_path: Path) -> None:
    code = f"""
import sys, pathlib, time
sys.path.insert(0, {str(Path(__file__).parents[2])!r})
from cli.supervise import Supervisor
from tests.cli.test_supervise import RUNS_UNTIL_TOLD, pid_of, spec
folder = pathlib.Path({str(tmp_path)!r})
with Supervisor(60, note=print) as supervisor:
    supervisor.start(spec(folder, "grouper", RUNS_UNTIL_TOLD))
    supervisor.wait_ready()
    (folder / "pid.part").write_text(str(pid_of(supervisor, "grouper")))
    (folder / "pid.part").rename(folder / "pid")
    supervisor.watch()
"""
    owner = subprocess.Popen([sys.executable, "-c", code])
    try:
        wait_until((tmp_path / "pid").exists, "the child is ready")
        child = int((tmp_path / "pid").read_text())
        assert lives(child)
    finally:
        owner.kill()
        owner.wait()
    wait_until(lambda: not lives(child), "the child is gone")
    # By SIGTERM: it could finish what it had.
    assert (tmp_path / "order.log").read_text() == "grouper ended\n"


def test_a_broker_does_not_outlive_a_run_of_tests_that_is_killed(tmp_path: Path) -> None:
    code = f"""
import sys, pathlib, time
sys.path.insert(0, {str(Path(__file__).parents[2])!r})
from bench.core.embedded_broker import EmbeddedBroker
with EmbeddedBroker() as broker:
    pathlib.Path({str(tmp_path)!r}, "part").write_text(str(broker._process.pid))
    pathlib.Path({str(tmp_path)!r}, "part").rename({str(tmp_path / "pid")!r})
    time.sleep(600)
"""
    owner = GuardedProcess[bytes]([sys.executable, "-c", code])
    wait_until((tmp_path / "pid").exists, "the broker runs")
    broker = int((tmp_path / "pid").read_text())
    assert lives(broker)
    owner.kill()
    owner.wait()
    wait_until(lambda: not lives(broker), "the broker is gone")


def test_pauses_between_restarts_double_to_a_bound_and_end(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(supervise, "RESTART_DELAY_S", 4)
    assert [restart_delay_s(count) for count in range(6)] == [4, 8, 16, 30, 30, None]
