"""The wheel holds one top-level package, and works beside an application with modules of the same
names as ours.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from tests.waiting import WAIT_S, wait_until

ROOT = Path(__file__).resolve().parents[2]
APPLICATION = """
import asyncio, sys
import bench, cli, schemas
from carpool import Client

async def ask(bootstrap):
    async with Client(bootstrap) as client:
        return await client.ask("On which river is town 3?", timeout_s=180)

answer = asyncio.run(ask(sys.argv[1]))
print(answer.status, answer.model, schemas.OWNER, cli.OWNER, bench.OWNER)
"""


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder into which the wheel is installed, without its dependencies."""
    built, site = tmp_path_factory.mktemp("built"), tmp_path_factory.mktemp("site")
    build = [sys.executable, "-m", "hatchling", "build", "-t", "wheel", "-d", str(built)]
    subprocess.run(build, cwd=ROOT, check=True, capture_output=True)
    install = [sys.executable, "-m", "pip", "install", "--no-deps", "--no-index", "--quiet"]
    (wheel,) = built.iterdir()
    subprocess.run([*install, "--target", str(site), str(wheel)], check=True)
    return site


@pytest.fixture
def folder(tmp_path: Path, site: Path) -> Path:
    """An application with modules of its own that are called as ours, and an index."""
    for name in ("schemas", "cli", "bench"):
        (tmp_path / f"{name}.py").write_text(f"OWNER = 'application/{name}'\n")
    (tmp_path / "application.py").write_text(APPLICATION)
    documents = (
        {"id": f"town-{number}", "text": f"Town {number} is on river {number}."}
        for number in range(20)
    )
    (tmp_path / "corpus.jsonl").write_text("\n".join(map(json.dumps, documents)))
    build = ["-m", "carpool", "index", "build", "corpus.jsonl", "--out", "index"]
    run(tmp_path, site, *build, "--model", "hashing:64", "--nlist", "4")
    return tmp_path


def start(folder: Path, site: Path, *arguments: str) -> subprocess.Popen[str]:
    """Runs Python in the application's folder, whose modules come first."""
    base = {name: value for name, value in os.environ.items() if not name.startswith("CARPOOL_")}
    return subprocess.Popen(
        [sys.executable, *arguments],
        cwd=folder,
        env=base | {"PYTHONPATH": f"{folder}:{site}", "OMP_NUM_THREADS": "1"},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        start_new_session=True,
    )


def run(folder: Path, site: Path, *arguments: str) -> str:
    process = start(folder, site, *arguments)
    output, _ = process.communicate(timeout=WAIT_S)
    assert process.returncode == 0, output
    return output


def test_the_wheel_holds_one_package_with_all_its_files(site: Path) -> None:
    assert {path.name.partition("-")[0] for path in site.iterdir()} == {"carpool", "bin"}
    for data in ("py.typed", "schemas/json", "generator/templates/cited.txt"):
        assert (site / "carpool" / data).exists()
    assert "carpool.__main__" in (site / "bin/carpool").read_text()


def test_an_application_with_a_module_called_schemas_asks_a_question(
    folder: Path, site: Path
) -> None:
    ports = ("--set=up.broker_port=0", "--set=up.http_port=0")
    settings = ("--set=llm.engine=none", "--set=searcher.direct_io=auto")
    model = ("--model", "hashing:64", "--index", "index")
    up = start(folder, site, "-m", "carpool", "up", *model, *ports, *settings)
    try:
        run_file = folder / ".carpool/run/run.json"

        def is_ready() -> bool:
            assert up.poll() is None, "the services start"
            return run_file.exists() and json.loads(run_file.read_text())["is_ready"]

        wait_until(is_ready, "the services are ready")
        bootstrap = json.loads(run_file.read_text())["bootstrap"]
        printed = run(folder, site, "application.py", bootstrap).split()
    finally:
        up.send_signal(signal.SIGINT)
        output, _ = up.communicate(timeout=WAIT_S)
    assert up.returncode == 0, output
    assert printed == ["ok", "none", "application/schemas", "application/cli", "application/bench"]
