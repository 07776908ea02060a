"""The code blocks of a page, and how each is run: in order, as a reader would."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
import sys
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from cli.settings import CarpoolSettings, Given, load
from tests.waiting import WAIT_S

ROOT = Path(__file__).resolve().parents[2]
BLOCK = re.compile(r"^```(.*?)\n(.*?)^```$", flags=re.MULTILINE | re.DOTALL)
DOCUMENTED_ADDRESS = "127.0.0.1:9092"
UP = "carpool up --index .carpool/index"


@dataclass(frozen=True)
class Block:
    """A code block of a page. `info` is what follows the fence, such as `sh no-run`."""

    info: str
    text: str


def blocks_of(page: Path) -> list[Block]:
    """Returns the code blocks of a page in order."""
    text = page.read_text(encoding="utf-8")
    return [Block(info=info.strip(), text=body) for info, body in BLOCK.findall(text)]


def program_of_guide() -> str:
    """Returns the text of `compare.py` in the guide of workflows."""
    blocks = blocks_of(ROOT / "docs" / "guides" / "workflows.md")
    (text,) = (block.text for block in blocks if block.info == "python compare.py")
    return text


def runnable_pages() -> list[Path]:
    """Returns the pages whose blocks are run."""
    return [ROOT / "README.md", *sorted((ROOT / "docs" / "guides").glob("*.md"))]


@dataclass(frozen=True)
class Running:
    """A running Carpool: where it was started, its brokers, and the environment of its users."""

    folder: Path
    bootstrap: str
    environ: Mapping[str, str]

    def run(self, command: list[str], folder: Path, **variables: str) -> str:
        """Runs a command of a user in `folder`, and returns what it printed."""
        done = subprocess.run(
            command,
            cwd=folder,
            env={**self.environ, **variables},
            capture_output=True,
            text=True,
            timeout=2 * WAIT_S,
        )
        assert done.returncode == 0, f"{command}\n{done.stdout}\n{done.stderr}"
        return done.stdout


def run_page(page: Path, folder: Path, running: Running) -> None:
    """Runs the blocks that can run, with one Carpool that stands for what `sh up` starts."""
    shutil.copytree(ROOT / "docs" / "guides", folder / "docs")
    for block in blocks_of(page):
        text = block.text.replace(DOCUMENTED_ADDRESS, running.bootstrap)
        match block.info:
            case "sh up":
                assert text.strip() == UP
                (folder / ".carpool").mkdir(exist_ok=True)
                (folder / ".carpool" / "run").symlink_to(running.folder / ".carpool" / "run")
            case "sh":
                running.run(["bash", "-euo", "pipefail", "-c", text], folder)
            case "python compare.py":  # the reader saves it
                (folder / "compare.py").write_text(text)
            case "python":
                at = running.bootstrap
                running.run([sys.executable, "-c", text], folder, CARPOOL_KAFKA_BOOTSTRAP=at)
            case "json":
                json.loads(text)
            case "toml":
                tomllib.loads(text)
                (folder / "page.toml").write_text(text)
                load(CarpoolSettings, Given(file=folder / "page.toml", environ={}, flags={}))
