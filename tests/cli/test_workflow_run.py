"""`carpool workflows run`: a real index, the stand-in of an LLM server, and no Kafka."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, TypeAlias

import pytest

from carpool.testing.llm_server import LlmServer
from tests.cli.support import Ended, carpool
from tests.deploy.doc_blocks import program_of_guide
from tests.indexer.helpers import build

GUIDE = Path(__file__).parents[2] / "docs" / "guides" / "workflows.md"
CORPUS = [
    {"id": "eiffel", "title": "Eiffel Tower", "text": "The Eiffel Tower was built in 1889."},
    {"id": "pisa", "title": "Pisa\x1b[31m", "text": "The Tower of Pisa was built in 1372."},
]
QUESTION = "Which tower is older, Eiffel's or Pisa's?"
Run: TypeAlias = Callable[[str], Ended]
ASKED = "Which tower is older?"
FIRST = "What is the first thing compared in"


@pytest.fixture(scope="module")
def index(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("index")
    corpus = folder / "corpus.jsonl"
    corpus.write_text("".join(json.dumps(each) + "\n" for each in CORPUS))
    build(corpus, folder / "index", nlist=1)
    return folder / "index"


@pytest.fixture(scope="module")
def llm() -> Iterator[LlmServer]:
    with LlmServer() as server:
        yield server


@pytest.fixture
def compare(tmp_path: Path) -> Path:
    file = tmp_path / "compare.py"
    file.write_text(program_of_guide())
    return file


@pytest.fixture
def run(index: Path, llm: LlmServer) -> Run:
    def ran(more: str) -> Ended:
        return carpool(f"workflows run {more} --index {index} --llm-model {llm.model}")

    return ran


def test_the_guides_commands_run_and_show_prompts_passages_and_texts(
    index: Path, llm: LlmServer, compare: Path
) -> None:
    commands = re.findall(r"^carpool workflows run (?:.*\\\n)*.*", GUIDE.read_text(), re.MULTILINE)
    whole, saved, continued = (
        each.replace("\\\n", "")
        .removeprefix("carpool ")
        .replace(".carpool/index", str(index))
        .replace("http://127.0.0.1:8000/v1", llm.url)
        .replace("my-model", llm.model)
        for each in commands
    )
    shown = carpool(whole)
    assert shown.code == 0, shown.stderr
    for part in (
        f"{FIRST}: {QUESTION}",
        "  3 search",
        "1  eiffel  ",
        "\n[2] ",
        f"Question: {QUESTION}",
        llm.model + " read",
    ):
        assert part in shown.stdout
    assert "\x1b" not in shown.stdout and "Pisa\\x1b[31m" in shown.stdout
    command, _, file = saved.partition(" > ")
    printed = carpool(command)
    Path(file).write_text(printed.stdout)
    steps = printed.json["steps"]
    assert [("user" in each, "hits" in each["result"]) for each in steps] == [
        *((True, False), (True, False), (False, True), (False, True)),
        (True, False),
    ]
    assert steps[-1]["result"]["text"].startswith(printed.json["answer"]["answer"][:20])
    assert printed.json["answer"]["timings_ms"]["total"] < 1e9, "since the start, not since 1970"
    assert printed.json["answer"]["retrieved"] and f"Question: {QUESTION}" in printed.stderr
    before = llm.requests.started
    text = compare.read_text().replace('Answer("cited"', 'Answer("cited_notes", notes=[]')
    compare.write_text(text)
    again = carpool(continued)
    assert (again.code, llm.requests.started - before) == (0, 1), again.stderr
    assert "Notes:\n(none)" in again.stdout and again.stdout.count("as saved") == 4


def test_a_step_before_the_one_to_go_on_from_must_be_the_saved_one(
    llm: LlmServer, compare: Path, run: Run
) -> None:
    line = f"compare.py '{ASKED}' --llm-url {llm.url}"
    Path("run.json").write_text(run(f"{line} --json").stdout)
    compare.write_text(compare.read_text().replace("the second thing", "the other thing"))
    other = run(f"{line} --from 3 --saved run.json")
    assert other.code == 2
    assert "step 2: the program asks for another step than the saved one" in other.stderr
    assert "continue with --from 2" in other.stderr
    assert run(f"{line} --from 2 --saved run.json").code == 0
    beyond = run(f"{line} --from 9 --saved run.json")
    assert (beyond.code, "step 2: " in beyond.stderr) == (2, True)


def test_a_run_goes_on_from_the_steps_of_an_answer(llm: LlmServer, compare: Path, run: Run) -> None:
    line = f"compare.py '{ASKED}' --llm-url {llm.url}"
    made = run(f"{line} --json").json
    steps = [{"n": n, "ms": 1.0, **told(each["result"])} for n, each in enumerate(made["steps"], 1)]
    answer = made["answer"] | {"steps": steps[:4]}
    Path("answer.json").write_text(json.dumps(answer))
    before = llm.requests.started
    again = run(f"{line} --json --from 5 --saved answer.json")
    assert (again.code, llm.requests.started - before) == (0, 1), again.stderr
    assert [each["result"]["text"] for each in again.json["steps"]] == [
        each["result"]["text"] for each in made["steps"]
    ]
    steps[2]["doc_ids"] = ["another"]
    Path("answer.json").write_text(json.dumps(answer))
    other = run(f"{line} --from 5 --saved answer.json")
    assert (other.code, "step 3: its search finds other passages" in other.stderr) == (2, True)


def told(result: dict[str, Any]) -> dict[str, Any]:
    """The step of an answer that tells this result."""
    if "hits" not in result:
        return {"kind": "generate", "text": result["text"], "tokens": 3}
    ids = [hit["doc_id"] for hit in result["hits"]]
    return {"kind": "retrieve", "text": result["text"], "doc_ids": ids}


@pytest.mark.parametrize(
    ("more", "code", "words"),
    [
        (
            "compare.py x --llm-url http://127.0.0.1:9/v1",
            1,
            "step 1: the LLM server at http://127.0.0.1:9",
        ),
        ("compare.py x --llm-url URL --program other", 2, "has the programs compare@1; name one"),
        ("compare.py x --llm-url URL --from 2", 2, "--from N and --saved FILE go together"),
        ("compare.py x --llm-url URL --from 2 --saved compare.py", 2, "is no saved run"),
        ("compare.py x --llm-url URL --set index.dir=nowhere", 2, "nowhere"),
        ("nothing.py x --llm-url URL", 2, "is no file that ends in .py or .json"),
        ("compare.py x --llm-url URL --set workflow.steps_max=1", 1, "more than 1 steps"),
        (
            "compare.py x --llm-url URL --set generator.prompt_chars_max=100",
            1,
            "step 5: the question",
        ),
    ],
)
def test_what_cannot_be_run_is_one_clear_line(
    index: Path, llm: LlmServer, compare: Path, more: str, code: int, words: str
) -> None:
    where = "" if "index.dir" in more else f"--index {index}"
    line = more.replace("URL", llm.url)
    ended = carpool(f"workflows run {line} {where} --llm-model {llm.model}")
    assert (ended.code, words in " ".join(ended.stderr.split())) == (code, True), ended.stderr
    assert "Traceback" not in ended.stderr


def test_a_server_that_fails_at_a_step_is_named_with_the_step(
    llm: LlmServer, compare: Path, run: Run
) -> None:
    llm.broken["the second thing"] = 99
    try:
        ended = run(f"compare.py '{ASKED}' --llm-url {llm.url}")
    finally:
        llm.broken.clear()
    assert ended.code == 1
    assert f"step 2: the LLM server at {llm.url}: " in ended.stderr
    assert "  1 write" in ended.stdout
