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
from pathlib import Path
from typing import Any

import pytest

from carpool.guard import GuardedProcess
from carpool.testing.llm_server import LlmServer
from schemas.topics import DOCUMENTS, VECTORS
from tests.cli.support import carpool
from tests.e2e.support import Publisher, at_least, read_all
from tests.waiting import WAIT_S, wait_until

ROOT = Path(__file__).parents[2]
TOWNS = [
    {"id": f"town-{n}", "title": f"Town {n}", "text": f"Town {n} lies on river {n}."}
    for n in range(20)
]


def ask(town: int) -> Any:
    return carpool(f"ask 'On which river lies town {town}?' --json --timeout {WAIT_S:g}").json


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


def command_of(pid: int) -> str:
    with contextlib.suppress(OSError):
        return Path(f"/proc/{pid}/cmdline").read_bytes().replace(b"\0", b" ").decode()
    return ""


@pytest.mark.slow
def test_questions_are_answered_a_crash_is_mended_and_ctrl_c_ends_everything(
    tmp_path: Path,
) -> None:
    run_file = tmp_path / ".carpool/run/run.json"
    (tmp_path / "corpus.jsonl").write_text("\n".join(map(json.dumps, TOWNS)))
    assert carpool("index build corpus.jsonl --out index --model hashing:64 --nlist 4").code == 0
    (tmp_path / "demo.txt").write_text("On which river lies town 3?\nOn which river lies town 7?\n")
    with LlmServer() as llm:
        at = f"up --index index --model hashing:64 --llm-url {llm.url} --llm-model {llm.model}"
        # The searcher insists on O_DIRECT; a temporary folder may lie in memory.
        settings = ("up.broker_port=0", "up.http_port=0", "searcher.direct_io=auto")
        options = [f"--set={each}" for each in settings]
        up = GuardedProcess[str](
            [sys.executable, "-m", "carpool", *at.split(), *options, "--demo=demo.txt", "--stay"],
            env=os.environ | {"PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1", "COLUMNS": "120"},
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
        try:
            wait_until(
                lambda: run_file.exists() and json.loads(run_file.read_text())["is_ready"],
                "all is ready",
            )
            answer = ask(5)
            assert (answer["status"], answer["model"]) == ("ok", llm.model)
            bootstrap = json.loads(run_file.read_text())["bootstrap"]
            assert (
                Publisher(bootstrap).send(DOCUMENTS.name, b"A town at a lake.", key="lake") is None
            )
            (indexed,) = read_all(bootstrap, VECTORS.name, until=at_least(1))
            assert [each["text"] for each in indexed.body["passages"]] == ["A town at a lake."]
            # -9 of the searcher: it is started again, and a question that comes meanwhile is
            # answered.
            searcher = next(
                pid for pid in processes_of(tmp_path) if " searcher " in command_of(pid)
            )
            os.kill(searcher, signal.SIGKILL)
            assert ask(6)["status"] == "ok"
            wait_until(lambda: carpool("status").code == 0, "all is ready again")
            second = carpool(at)
            assert second.code == 2
            assert "runs here already" in " ".join(second.stderr.split())
        finally:
            up.send_signal(signal.SIGINT)
            text, _ = up.communicate(timeout=WAIT_S)
    assert up.returncode == 0, text
    assert "1. On which river lies town 3?" in text
    assert f"{llm.model} read" in text
    assert "2 of 2 answered from passages. 0 have a passage that supports them" in text
    assert "Time of every stage, ms" in text
    for stage in ("kafka_wait", "window_wait", "search", "ttft", "total"):
        assert stage in text
    assert "Ask another:  carpool ask" in text
    assert "searcher ended by signal 9; started again" in text
    assert "searcher is ready again" in text
    assert not run_file.exists()
    wait_until(lambda: not processes_of(tmp_path), "nothing is left")
