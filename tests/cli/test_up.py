"""`carpool up` as a user runs it: everything starts, questions are answered, a crash is mended,
Ctrl-C leaves nothing.
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from carpool.kafka.embedded import free_port
from cli.http import get
from tests.waiting import WAIT_S, wait_until

ROOT = Path(__file__).parents[2]
STAND_IN = "carpool-llm-stand-in"


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A folder with an index of twenty passages over the hashing model."""
    lines = [
        json.dumps(
            {
                "id": f"town-{number}",
                "title": f"Town {number}",
                "text": f"Town {number} lies on river {number}.",
            }
        )
        for number in range(20)
    ]
    (tmp_path / "corpus.jsonl").write_text("\n".join(lines))
    (tmp_path / "questions.txt").write_text(
        "On which river lies town 3?\nOn which river lies town 7?\n"
    )
    build = (
        "index",
        "build",
        "corpus.jsonl",
        "--out",
        "index",
        "--model",
        "hashing:64",
        "--nlist",
        "4",
    )
    subprocess.run(
        [sys.executable, "-m", "carpool", *build],
        cwd=tmp_path,
        env=environ(),
        check=True,
        capture_output=True,
    )
    return tmp_path


def environ() -> dict[str, str]:
    base = {name: value for name, value in os.environ.items() if not name.startswith("CARPOOL_")}
    return base | {"PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1", "COLUMNS": "120"}


@pytest.fixture
def llm_url(tmp_path: Path) -> Iterator[str]:
    """The LLM stand-in as a process."""
    port = free_port()
    with (tmp_path / "llm.log").open("wb") as log:
        process = subprocess.Popen(
            [sys.executable, "-m", "carpool.testing.llm_server", "--port", str(port)],
            stdout=log,
            stderr=log,
            cwd=ROOT,  # not in the folder whose processes are counted
            env=environ(),
        )
    try:
        wait_until(lambda: get(f"http://127.0.0.1:{port}/health")[0] == 200, "the stand-in is up")
        yield f"http://127.0.0.1:{port}/v1"
    finally:
        process.kill()
        process.wait()


def up(folder: Path, llm_url: str, *more: str) -> subprocess.Popen[str]:
    arguments = (
        "--index",
        "index",
        "--model",
        "hashing:64",
        "--llm-url",
        llm_url,
        "--llm-model",
        STAND_IN,
    )
    free = ("--set", "up.broker_port=0", "--set", "up.http_port=0")
    # The searcher insists on O_DIRECT; a temporary folder may lie in memory.
    command = [
        sys.executable,
        "-m",
        "carpool",
        "up",
        *arguments,
        *free,
        "--set",
        "searcher.direct_io=auto",
        *more,
    ]
    return subprocess.Popen(
        command,
        cwd=folder,
        env=environ(),
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        start_new_session=True,
    )


def processes_of(folder: Path) -> set[int]:
    """Every other living process whose working directory is this folder."""
    found = set()
    for entry in Path("/proc").iterdir():
        with contextlib.suppress(OSError):
            if (
                entry.name.isdigit()
                and int(entry.name) != os.getpid()
                and (entry / "cwd").resolve() == folder
                and (entry / "stat").read_text().split()[2] != "Z"
            ):
                found.add(int(entry.name))
    return found


def test_questions_are_answered_with_citations_and_times_and_everything_ends(
    folder: Path, llm_url: str
) -> None:
    process = up(folder, llm_url, "--demo", "questions.txt", "--exit-after-demo")
    try:
        text, _ = process.communicate(timeout=WAIT_S)
    finally:
        process.kill()
    assert process.returncode == 0, text
    assert "1. On which river lies town 3?" in text
    assert f"{STAND_IN} read" in text
    assert "2 of 2 answered from passages: 2 with a quote, 2 with a citation by the model" in text
    assert "Time of every stage, ms" in text
    for stage in ("kafka_wait", "window_wait", "search", "ttft", "total"):
        assert stage in text
    assert "Ask another:  carpool ask" in text
    assert not (folder / ".carpool/run/run.json").exists()
    wait_until(lambda: not processes_of(folder), "nothing is left")


@pytest.mark.slow
def test_another_shell_finds_it_a_crash_is_mended_and_ctrl_c_ends_all(
    folder: Path, llm_url: str
) -> None:
    process = up(folder, llm_url)
    run_file = folder / ".carpool/run/run.json"
    try:
        wait_until(
            lambda: run_file.exists() and json.loads(run_file.read_text())["is_ready"],
            "all is ready",
        )
        asked = carpool(
            folder, "ask", "On which river lies town 5?", "--json", "--timeout", f"{WAIT_S:g}"
        )
        answer = json.loads(asked.stdout)
        assert (answer["status"], answer["model"]) == ("ok", STAND_IN)
        # -9 of the searcher: `up` starts it again, and a question that comes meanwhile is answered.
        searcher = next(pid for pid in processes_of(folder) if " searcher " in command_of(pid))
        os.kill(searcher, signal.SIGKILL)
        again = json.loads(
            carpool(
                folder, "ask", "On which river lies town 6?", "--json", "--timeout", f"{WAIT_S:g}"
            ).stdout
        )
        assert again["status"] == "ok"
        wait_until(lambda: carpool(folder, "status").returncode == 0, "all is ready again")
        second = carpool(folder, "up", "--index", "index", "--llm-url", llm_url)
        assert second.returncode == 2
        assert "runs here already" in " ".join(second.stderr.split())
    finally:
        process.send_signal(signal.SIGINT)
        text, _ = process.communicate(timeout=WAIT_S)
    assert process.returncode == 0, text
    assert "searcher ended by signal 9; started again" in text
    assert "searcher is ready again" in text
    assert not run_file.exists()
    wait_until(lambda: not processes_of(folder), "nothing is left")


def carpool(folder: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "carpool", *arguments],
        cwd=folder,
        env=environ(),
        capture_output=True,
        text=True,
        timeout=2 * WAIT_S,
    )


def command_of(pid: int) -> str:
    try:
        return Path(f"/proc/{pid}/cmdline").read_bytes().replace(b"\0", b" ").decode()
    except OSError:
        return ""
