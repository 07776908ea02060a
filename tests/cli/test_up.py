"""`carpool up` as a user runs it: everything starts, questions are answered, a crash is mended,
Ctrl-C leaves nothing.
"""

from __future__ import annotations

import contextlib
import json
import os
import shlex
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from carpool.testing.llm_server import LlmServer
from tests.waiting import WAIT_S, wait_until

ROOT = Path(__file__).parents[2]
TOWNS = [
    {"id": f"town-{n}", "title": f"Town {n}", "text": f"Town {n} lies on river {n}."}
    for n in range(20)
]


class User:
    """Runs `carpool` in a folder with an index of twenty passages."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        base = {name: text for name, text in os.environ.items() if not name.startswith("CARPOOL_")}
        # The searcher insists on O_DIRECT; a temporary folder may lie in memory.
        self.environ = base | {
            "PYTHONPATH": str(ROOT),
            "OMP_NUM_THREADS": "1",
            "COLUMNS": "120",
            "CARPOOL_SEARCHER_DIRECT_IO": "auto",
            "CARPOOL_EMBEDDING_MODEL": "hashing:64",
        }
        (folder / "corpus.jsonl").write_text("\n".join(map(json.dumps, TOWNS)))
        assert self.run("index build corpus.jsonl --out index --nlist 4").returncode == 0

    def start(self, line: str) -> subprocess.Popen[str]:
        return subprocess.Popen(
            [sys.executable, "-m", "carpool", *shlex.split(line)],
            cwd=self.folder,
            env=self.environ,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            start_new_session=True,
        )

    def run(self, line: str) -> subprocess.CompletedProcess[str]:
        process = self.start(line)
        printed, _ = process.communicate(timeout=2 * WAIT_S)
        return subprocess.CompletedProcess(line, process.returncode, printed)

    def ask(self, town: int) -> dict[str, Any]:
        line = f"ask 'On which river lies town {town}?' --json --timeout {WAIT_S:g}"
        answer: dict[str, Any] = json.loads(self.run(line).stdout)
        return answer

    def processes(self) -> set[int]:
        """Every living process whose working directory is the folder."""
        found = set()
        for entry in Path("/proc").iterdir():
            with contextlib.suppress(OSError):
                if (
                    entry.name.isdigit()
                    and int(entry.name) != os.getpid()
                    and (entry / "cwd").resolve() == self.folder
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
    user, run_file = User(tmp_path), tmp_path / ".carpool/run/run.json"
    (tmp_path / "demo.txt").write_text("On which river lies town 3?\nOn which river lies town 7?\n")
    with LlmServer() as llm:
        at = f"--index index --llm-url {llm.url} --llm-model {llm.model}"
        free = "--set up.broker_port=0 --set up.http_port=0"
        up = user.start(f"up {at} {free} --demo demo.txt --stay")
        try:
            wait_until(
                lambda: run_file.exists() and json.loads(run_file.read_text())["is_ready"],
                "all is ready",
            )
            answer = user.ask(5)
            assert (answer["status"], answer["model"]) == ("ok", llm.model)
            # -9 of the searcher: it is started again, and a question that comes meanwhile is
            # answered.
            searcher = next(pid for pid in user.processes() if " searcher " in command_of(pid))
            os.kill(searcher, signal.SIGKILL)
            assert user.ask(6)["status"] == "ok"
            wait_until(lambda: user.run("status").returncode == 0, "all is ready again")
            second = user.run(f"up {at}")
            assert second.returncode == 2
            assert "runs here already" in " ".join(second.stdout.split())
        finally:
            up.send_signal(signal.SIGINT)
            text, _ = up.communicate(timeout=WAIT_S)
    assert up.returncode == 0, text
    assert "1. On which river lies town 3?" in text
    assert f"{llm.model} read" in text
    assert "2 of 2 answered from passages: 2 with a quote, 2 with a citation by the model" in text
    assert "Time of every stage, ms" in text
    for stage in ("kafka_wait", "window_wait", "search", "ttft", "total"):
        assert stage in text
    assert "Ask another:  carpool ask" in text
    assert "searcher ended by signal 9; started again" in text
    assert "searcher is ready again" in text
    assert not run_file.exists()
    wait_until(lambda: not user.processes(), "nothing is left")
