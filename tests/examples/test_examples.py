"""The examples run against a small Carpool, as their first lines say."""

from __future__ import annotations

import asyncio
import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.deploy.doc_blocks import ROOT, build_small_index, environ, small_carpool
from tests.waiting import WAIT_S


@pytest.fixture(scope="module")
def bootstrap(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """The brokers of one Carpool for all examples."""
    with small_carpool(tmp_path_factory.mktemp("carpool")) as found:
        yield found.bootstrap


def run(command: list[str], folder: Path, **variables: str) -> str:
    done = subprocess.run(
        command,
        cwd=folder,
        env=environ() | variables,
        capture_output=True,
        text=True,
        timeout=2 * WAIT_S,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def properties(bootstrap: str, folder: Path) -> str:
    (folder / "client.properties").write_text(f"# brokers\nbootstrap.servers={bootstrap}\n")
    return "client.properties"


def test_a_batch_of_questions_is_asked_and_collected_and_asked_again(
    bootstrap: str, tmp_path: Path
) -> None:
    questions = ["When was the Eiffel Tower built?", "Who wrote Moby-Dick?"]
    (tmp_path / "questions.txt").write_text("\n".join(questions))
    batch = [sys.executable, str(ROOT / "examples" / "batch.py")]
    for _ in range(2):
        asked = [*batch, "questions.txt", "answers.jsonl"]
        run(asked, tmp_path, CARPOOL_KAFKA_BOOTSTRAP=bootstrap)
        lines = (tmp_path / "answers.jsonl").read_text().splitlines()
        answers = [json.loads(line) for line in lines]
        assert sorted(answer["question"] for answer in answers) == sorted(questions)
        assert {answer["status"] for answer in answers} <= {"ok", "partial"}


def test_bare_texts_of_one_customer_are_matched_by_their_places(
    bootstrap: str, tmp_path: Path
) -> None:
    questions = ["Who wrote Moby-Dick?", "When was the Eiffel Tower built?"]
    asking = [sys.executable, str(ROOT / "examples" / "bare_text.py")]
    printed = run([*asking, properties(bootstrap, tmp_path), "customer-7", *questions], tmp_path)
    asked = [line.split("?")[0] + "?" for line in printed.splitlines()]
    assert sorted(asked) == sorted(f"customer-7: {question}" for question in questions)


@pytest.mark.kafka
def test_a_java_program_asks_and_reads_its_answer(bootstrap: str, tmp_path: Path) -> None:
    jars = f"{os.environ['KAFKA_HOME']}/libs/*"
    java = ["java", "-cp", jars, str(ROOT / "examples" / "Ask.java")]
    printed = run([*java, properties(bootstrap, tmp_path), "Who wrote Moby-Dick?"], tmp_path)
    assert printed.split(":")[0] in ("ok", "partial")


def test_a_retriever_finds_passages_as_langchain_reads_them(tmp_path: Path) -> None:
    build_small_index(tmp_path)
    index = tmp_path / ".carpool" / "index"
    retriever = [sys.executable, str(ROOT / "examples" / "retriever.py"), str(index)]
    printed = run([*retriever, "Moby-Dick novel by Herman Melville"], tmp_path)
    assert "Moby-Dick" in printed.splitlines()[0]
    sys.path.insert(0, str(ROOT / "examples"))
    try:
        from retriever import Retriever  # type: ignore[import-not-found]
    finally:
        sys.path.pop(0)
    finder = Retriever(index, top_k=2)
    one = finder.invoke("Moby-Dick novel", config={"tags": ["x"]})
    assert [one, one] == finder.batch(["Moby-Dick novel"] * 2)
    assert one == asyncio.run(finder.ainvoke("Moby-Dick novel"))
    assert len(one) == 2 and one[0].page_content and one[0].metadata["id"]
    finder.close()
