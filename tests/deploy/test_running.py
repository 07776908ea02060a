"""One Carpool runs from the wheel, next to an application with modules of the same names as ours:
the code blocks of the pages, the examples and that application use it.
"""

from __future__ import annotations

import asyncio
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import zipfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from carpool.guard import GuardedProcess
from cli.runfile import Run, RunFile
from tests.deploy.doc_blocks import ROOT, UP, Running, run_page, runnable_pages
from tests.waiting import WAIT_S, wait_until

pytestmark = pytest.mark.slow
EXAMPLES = ROOT / "examples"
TEXTS = ("generator/templates/cited.txt", "evaluation/report.html")
MOBY, EIFFEL = "Who wrote Moby-Dick?", "When was the Eiffel Tower built?"
PASSAGES = (
    {"id": "eiffel", "title": "Eiffel Tower", "text": "The Eiffel Tower was built in 1889."},
    {
        "id": "moby",
        "title": "Moby-Dick",
        "text": "Moby-Dick is a novel by Herman Melville.",
        "metadata": {"year": 1851},
    },
)
APPLICATION = """
import asyncio, sys
import bench, cli, schemas
from carpool import Client

async def ask(bootstrap):
    async with Client(bootstrap) as client:
        return await client.ask("Who wrote Moby-Dick?", timeout_s=180)

answer = asyncio.run(ask(sys.argv[1]))
print(answer.status, answer.model, schemas.OWNER, cli.OWNER, bench.OWNER)
"""


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder into which the wheel is installed, without its dependencies."""
    built, site = tmp_path_factory.mktemp("built"), tmp_path_factory.mktemp("site")
    build = [sys.executable, "-m", "hatchling", "build", "-t", "wheel", "-d", str(built)]
    subprocess.run(build, cwd=ROOT, check=True, capture_output=True)
    (wheel,) = built.iterdir()
    zipfile.ZipFile(wheel).extractall(site)
    return site


@pytest.fixture(scope="module")
def running(site: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Running]:
    """A small Carpool: two passages, no language model, in the folder of the application."""
    folder = tmp_path_factory.mktemp("application")
    for name in ("schemas", "cli", "bench"):
        (folder / f"{name}.py").write_text(f"OWNER = 'application/{name}'\n")
    (folder / "application.py").write_text(APPLICATION)
    (folder / "corpus.jsonl").write_text("\n".join(map(json.dumps, PASSAGES)))
    found = Running(folder, "", environ(folder, site))
    build = ["carpool", "index", "build", "corpus.jsonl", "--out", ".carpool/index", "--nlist", "2"]
    found.run(build, folder)
    log = folder / "up.log"
    with log.open("wb") as output:
        up = GuardedProcess[bytes](
            UP.split(), cwd=folder, env=found.environ, stdout=output, stderr=output
        )

    def is_ready() -> Run | None:
        assert up.poll() is None, log.read_text()
        run = RunFile(folder / ".carpool" / "run").read()
        is_told = "OPENAI_API_KEY" in log.read_text()
        return run if run is not None and run.is_ready and is_told else None

    try:
        run = wait_until(is_ready, lambda: f"`carpool up` is not ready: {log.read_text()}")
        assert run is not None
        of_sdk = dict(re.findall(r"(OPENAI_\w+)=(\S+)", log.read_text()))
        yield Running(folder, run.bootstrap, {**found.environ, **of_sdk})
    finally:
        up.send_signal(signal.SIGINT)
        assert up.wait(WAIT_S) == 0, log.read_text()


def environ(folder: Path, site: Path) -> dict[str, str]:
    """The environment of a user: the application's modules first, a small model, free ports."""
    base = {name: value for name, value in os.environ.items() if not name.startswith("CARPOOL_")}
    return base | {
        "PATH": f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}",
        "PYTHONPATH": f"{folder}{os.pathsep}{site}",
        "CARPOOL_UP_BROKER_PORT": "0",
        "CARPOOL_UP_HTTP_PORT": "0",
        "CARPOOL_EMBEDDING_MODEL": "hashing:64",
        "CARPOOL_LLM_ENGINE": "none",
        "CARPOOL_SEARCHER_DIRECT_IO": "auto",
        "OMP_NUM_THREADS": "1",
    }


def test_the_wheel_holds_one_package_with_all_its_files(site: Path) -> None:
    package, about = sorted(path.name for path in site.iterdir())
    assert (package, about.partition("-")[0]) == ("carpool", "carpool")
    kernel = ["codes/libint4.so"] if shutil.which("c++") else []
    for data in ("py.typed", "schemas/json", *TEXTS, *kernel):
        assert (site / "carpool" / data).exists()
    assert "carpool = carpool.__main__:main" in (site / about / "entry_points.txt").read_text()


def test_an_application_with_a_module_called_schemas_asks_a_question(running: Running) -> None:
    printed = running.run([sys.executable, "application.py", running.bootstrap], running.folder)
    owners = [f"application/{name}" for name in ("schemas", "cli", "bench")]
    assert printed.split() == ["ok", "none", *owners]


@pytest.mark.parametrize("page", runnable_pages(), ids=lambda page: page.stem)
def test_code_blocks_run(page: Path, tmp_path: Path, running: Running) -> None:
    run_page(page, tmp_path, running)


def properties(running: Running, folder: Path) -> str:
    (folder / "client.properties").write_text(f"# x\nbootstrap.servers={running.bootstrap}\n")
    return "client.properties"


def test_bare_texts_of_one_customer_are_matched_by_their_places(
    running: Running, tmp_path: Path
) -> None:
    asking = [sys.executable, str(EXAMPLES / "bare_text.py"), properties(running, tmp_path)]
    printed = running.run([*asking, "customer-7", MOBY, EIFFEL], tmp_path)
    lines = [line for line in printed.splitlines() if line.startswith("customer-7: ")]
    asked = [line.split("?")[0] + "?" for line in lines]
    assert sorted(asked) == [f"customer-7: {question}" for question in (EIFFEL, MOBY)]


@pytest.mark.kafka
def test_a_java_program_asks_and_reads_its_answer(running: Running, tmp_path: Path) -> None:
    java = ["java", "-cp", f"{os.environ['KAFKA_HOME']}/libs/*", str(EXAMPLES / "Ask.java")]
    printed = running.run([*java, properties(running, tmp_path), MOBY], tmp_path)
    assert printed.split(":")[0] in ("ok", "partial")


def test_a_retriever_finds_passages_as_langchain_reads_them(
    running: Running, monkeypatch: pytest.MonkeyPatch
) -> None:
    index = running.folder / ".carpool" / "index"
    retriever = [sys.executable, str(EXAMPLES / "retriever.py"), str(index)]
    printed = running.run([*retriever, "Moby-Dick novel by Herman Melville"], running.folder)
    assert "Moby-Dick" in printed.splitlines()[0]
    monkeypatch.syspath_prepend(EXAMPLES)
    from retriever import Retriever  # type: ignore[import-not-found]

    finder = Retriever(index, top_k=2)
    one = finder.invoke("Moby-Dick novel", config={"tags": ["x"]})
    assert [one, one] == finder.batch(["Moby-Dick novel"] * 2)
    assert one == asyncio.run(finder.ainvoke("Moby-Dick novel"))
    assert len(one) == 2 and one[0].page_content and one[0].metadata["id"]
    assert one[0].metadata["year"] == 1851
    finder.close()
