"""Figures and defaults that pages state: stored results, the commands of today, the settings."""

from __future__ import annotations

import json
import re
import shlex
import tomllib
from collections.abc import Iterator
from functools import cache
from itertools import takewhile
from pathlib import Path
from typing import Any

import pytest
from typer.main import get_command

from bench.cli import app as bench
from bench.search.contestants.registry import chosen_names
from cli.index import app as index
from cli.main import app as carpool
from cli.settings import CarpoolSettings, Given, load
from indexer.plan.defaults import default_nprobe
from tests.deploy.doc_blocks import BLOCK, ROOT
from tests.deploy.test_docs import name_of, pages

RESULTS = sorted((ROOT / "docs" / "results").glob("*.json"))
BENCHMARKS, PAPERS = (ROOT / "docs" / name for name in ("benchmarks.md", "papers.md"))
CUT_OFF = ("MissingParameter", "BadOptionUsage", "NoArgsIsHelpError")
"""Errors of a command that a sentence names without all that it needs."""
GUESS = "question or last search"
BUSY = tuple(f"busy, {others} others a window: read" for others in (0, 6))


@cache
def tree_of(group: str) -> Any:
    """The commands of `carpool`, or of one of its groups; making them takes a tenth of a second."""
    return get_command({"bench": bench, "index": index}.get(group, carpool))


def parsed(arguments: list[str]) -> Any:
    """Parses what follows `carpool`, as the CLI does; returns the context of the command."""
    command = tree_of(arguments.pop(0) if arguments[0] in ("bench", "index") else "")
    while hasattr(command, "commands") and arguments:
        command = command.commands[arguments.pop(0)]
    return command.make_context("carpool", arguments)


@pytest.mark.parametrize("result", RESULTS, ids=lambda path: path.stem)
def test_the_command_of_a_stored_result_is_one_of_today_and_a_page_names_the_result(
    result: Path,
) -> None:
    name, *arguments = json.loads(result.read_text())["command"]
    assert name == "carpool"
    chosen_names(parsed(arguments).params.get("contestants"))
    assert f"results/{result.name}" in BENCHMARKS.read_text()


def commands_of(page: Path) -> Iterator[list[str]]:
    """Yields the words of each command of `carpool` that a page prints."""
    text = page.read_text(encoding="utf-8")
    lines = [
        line for _, body in BLOCK.findall(text) for line in body.replace("\\\n", "").splitlines()
    ]
    spans = re.findall(r"`([^`]+)`", BLOCK.sub("", text))
    for line in [*lines, *spans]:
        if line.removeprefix("$ ").startswith("carpool "):
            words = shlex.split(line.removeprefix("$ "), comments=True)[1:]
            yield list(takewhile(lambda word: word not in ("|", "||", ">", "<", "&"), words))


@pytest.mark.parametrize(
    "page", [page for page in pages() if page.name != "CHANGELOG.md"], ids=name_of
)
def test_a_page_prints_commands_of_today(page: Path) -> None:
    wrong = []
    for words in commands_of(page):
        try:
            if words != ["--version"]:
                parsed([word for word in words if word != "--help"])
        except Exception as error:
            if type(error).__name__ not in CUT_OFF:
                wrong.append(f"carpool {' '.join(words)}: {error}")
    assert wrong == []


def test_the_page_of_papers_states_the_defaults_of_today() -> None:
    text = PAPERS.read_text()
    table = text[text.index("## What runs") : text.index("## CaGR-RAG")]
    stated = re.findall(r"`(\w+)\.(\w+) = ([^`]+)`", table)
    assert len({name for _, name, _ in stated}) >= 8
    defaults = load(CarpoolSettings, Given(file=None, environ={}, flags={}))
    for section, name, value in stated:
        default = getattr(getattr(defaults, section), name)
        assert tomllib.loads(f"value = {value}")["value"] == default, f"{section}.{name}"
    passages = int(re.findall(r"^PASSAGES \?= (\d+)", (ROOT / "Makefile").read_text(), re.M)[0])
    nlist = int(re.findall(r"nlist=([1-9]\d*)", (ROOT / "deploy" / "demo" / "demo").read_text())[0])
    assert f"{default_nprobe(passages, nlist)} of {nlist} clusters" in table


def result_of(name: str) -> Any:
    """Returns the results in a file of docs/results."""
    return json.loads((ROOT / "docs" / "results" / f"{name}.json").read_text())["results"]


def test_the_page_has_all_rows_of_speculative_retrieval() -> None:
    page, rows = BENCHMARKS.read_text(), 0
    for title, table in result_of("hedrarag-nearness").items():
        found = re.fullmatch(r"(\w+), nlist (\d+), memory (\d+)%: bytes over those wanted", title)
        if found is None:
            continue
        program, nlist, memory = found.groups()
        for kind, searches in (("exact", "exact"), ("paged", "paged codes")):
            figures = ("alone: waited for", "alone: read", *BUSY)
            cells = [
                "; ".join(f"{table[guess][f'{kind}, {figure}']:.3f}" for figure in figures)
                for guess in ("none", GUESS, f"{GUESS}, 50% of the text", "oracle")
            ]
            row = f"| {nlist}; {memory} % | `{program}`, {searches} | {' | '.join(cells)} |"
            assert row in page
            rows += 1
    assert rows == 16


def test_the_page_has_all_rows_of_warm_ups() -> None:
    page, tables = BENCHMARKS.read_text(), result_of("speculation")
    for policy in next(iter(tables.values())):
        each = [table[policy] for table in tables.values()]
        cells = [f"{one['saved']:.2f}; {one['in_vain']:.2f}; {one['ttft_ms']:.0f}" for one in each]
        assert f"`{policy}` | {' | '.join(cells)} |" in page
