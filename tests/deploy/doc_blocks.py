"""Runs the code blocks of a page in order, as a reader would, in a folder of their own."""

from __future__ import annotations

import contextlib
import json
import os
import re
import signal
import subprocess
import sys
import tomllib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from cli.all_settings import CarpoolSettings
from cli.runfile import RunFile
from cli.settings import Given, load
from tests.waiting import WAIT_S, wait_until

ROOT = Path(__file__).resolve().parents[2]
BLOCK = re.compile(r"^```(.*?)\n(.*?)^```$", flags=re.MULTILINE | re.DOTALL)
DOCUMENTED_ADDRESS = "127.0.0.1:9092"
UP = "carpool up --index .carpool/index"


@dataclass(frozen=True)
class Block:
    """A code block of a page. `info` is what follows the fence, such as `sh no-run`."""

    page: Path
    info: str
    text: str


def blocks_of(page: Path) -> list[Block]:
    """Returns the code blocks of a page in order."""
    text = page.read_text(encoding="utf-8")
    return [Block(page=page, info=info.strip(), text=body) for info, body in BLOCK.findall(text)]


def environ() -> dict[str, str]:
    """Returns the environment of a reader: a small embedding model, no LLM, free ports."""
    base = {name: value for name, value in os.environ.items() if not name.startswith("CARPOOL_")}
    return {
        **base,
        "PATH": f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}",
        "PYTHONPATH": str(ROOT),
        "CARPOOL_UP_BROKER_PORT": "0",
        "CARPOOL_UP_HTTP_PORT": "0",
        "CARPOOL_EMBEDDING_MODEL": "hashing:64",
        "CARPOOL_LLM_ENGINE": "none",
        "CARPOOL_SEARCHER_DIRECT_IO": "auto",
        "OMP_NUM_THREADS": "1",
    }


def _bootstrap_when_ready(process: subprocess.Popen[bytes], folder: Path) -> str:
    def log() -> str:
        return f"`carpool up` is not ready: {(folder / 'up.log').read_text()}"

    def bootstrap() -> str | None:
        assert process.poll() is None, log()
        run = RunFile(folder / ".carpool" / "run").read()
        return run.bootstrap if run is not None and run.is_ready else None

    return wait_until(bootstrap, log) or ""


def run_page(blocks: list[Block], folder: Path, running: Running) -> None:
    """Runs the blocks that can run, beside one Carpool that stands for what `sh up` starts."""
    for block in blocks:
        text = block.text.replace(DOCUMENTED_ADDRESS, running.bootstrap)
        match block.info:
            case "sh up":
                assert text.strip() == UP
                (folder / ".carpool").mkdir(exist_ok=True)
                (folder / ".carpool" / "run").symlink_to(running.folder / ".carpool" / "run")
            case "sh":
                _run(["bash", "-euo", "pipefail", "-c", text], block, folder)
            case "python":
                variables = {"CARPOOL_KAFKA_BOOTSTRAP": running.bootstrap}
                _run([sys.executable, "-c", text], block, folder, variables)
            case "json":
                json.loads(text)
            case "toml":
                tomllib.loads(text)
                (folder / "page.toml").write_text(text)
                load(CarpoolSettings, Given(file=folder / "page.toml", environ={}, flags={}))


def _run(command: list[str], block: Block, folder: Path, variables: Mapping[str, str] = {}) -> None:
    environment = {**environ(), **variables}
    done = subprocess.run(
        command, cwd=folder, env=environment, capture_output=True, text=True, timeout=WAIT_S
    )
    assert done.returncode == 0, f"{block.page}: {block.text}\n{done.stdout}\n{done.stderr}"


def build_small_index(folder: Path) -> None:
    """Builds an index of two passages in `folder`, with the command that users run."""
    lines = [
        {"id": "eiffel", "title": "Eiffel Tower", "text": "The Eiffel Tower was built in 1889."},
        {"id": "moby", "title": "Moby-Dick", "text": "Moby-Dick is a novel by Herman Melville."},
    ]
    (folder / "corpus.jsonl").write_text("\n".join(json.dumps(line) for line in lines))
    build = ["carpool", "index", "build", "corpus.jsonl", "--out", ".carpool/index", "--nlist", "2"]
    subprocess.run(build, cwd=folder, env=environ(), check=True, capture_output=True)


@dataclass(frozen=True)
class Running:
    """A running Carpool: where it was started, and its brokers."""

    folder: Path
    bootstrap: str


@contextlib.contextmanager
def small_carpool(folder: Path) -> Iterator[Running]:
    """Runs a small Carpool in `folder`: two passages, no language model."""
    build_small_index(folder)
    with (folder / "up.log").open("wb") as log:
        process = subprocess.Popen(
            ["bash", "-c", f"exec {UP}"], cwd=folder, env=environ(), stdout=log, stderr=log
        )
    try:
        yield Running(folder, _bootstrap_when_ready(process, folder))
    finally:
        process.send_signal(signal.SIGINT)
        process.wait(WAIT_S)
