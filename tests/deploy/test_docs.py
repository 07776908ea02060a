"""The pages are true: links resolve, references are complete. `test_running` runs their blocks."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from carpool.settings import SECTIONS, section_kinds
from cli.exit_codes import EXIT_CODES
from cli.settings import CarpoolSettings
from schemas.headers import ERROR_PREFIX, HEADERS
from tests.deploy.doc_blocks import BLOCK, ROOT, blocks_of, runnable_pages
from tests.scripts import load_script

LINK = re.compile(r"!?\[[^\]]*\]\(([^)\s]+)\)")
PRODUCT = (
    "schemas", "producers", "carpool", "grouper", "searcher", "generator", "indexer", "gateway",
    "cli",
)  # fmt: skip
RUN = ("sh", "sh up", "python", "python compare.py", "json", "toml")
RUN_NOT = ("sh no-run", "python no-run", "js no-run")
NOT_RUN = {
    "README.md": ["make demo", "printf", "carpool up"],
    "docs/guides/kubernetes.md": [
        "kubectl apply -k",
        "kubectl create secret",
        *["kubectl apply -k"] * 2,
    ],
    "docs/guides/another-language.md": ["java -cp"],
    "docs/guides/frameworks.md": [
        "import asyncio",
        "import { createOpenAI",
        "from langchain_openai",
        "import os",
        "pip install open-webui",
    ],
    "docs/guides/gateway.md": ["carpool gateway-key"],
    "docs/guides/hot-shard.md": ["CARPOOL_GPU_MEMORY_UTILIZATION"],
    "docs/guides/llm-servers.md": [
        "vllm serve /models",
        "vllm serve ... --kv-events-config",
        "carpool up --index my-index",
        "PYTHONPATH=",
        "OLLAMA_CONTEXT",
        "llama-server",
        "export CARPOOL_LLM",
    ],
    "docs/guides/operating.md": ["curl http"],
    "docs/guides/own-corpus.md": ["carpool index tune"],
    "docs/guides/paper-mode.md": [
        "carpool index build",
        "carpool batch run",
        "carpool up --config",  # tests/e2e/test_paper_mode.py
    ],
    "docs/guides/workflows.md": [
        "carpool ask --workflow",
        *["carpool workflows run"] * 2,  # tests/cli/test_workflow_run.py
    ],
    "docs/guides/own-kafka.md": ["export CARPOOL"],
}
"""Blocks that need what a test has not; each begins so."""


def pages() -> list[Path]:
    folders = ("docs", "examples", "bench", *PRODUCT)
    return sorted(
        [*ROOT.glob("*.md"), *(page for name in folders for page in (ROOT / name).rglob("*.md"))]
    )


def name_of(page: Path) -> str:
    return str(page.relative_to(ROOT))


def anchors(page: Path) -> set[str]:
    """The anchors that GitHub makes of the headings of `page`."""
    text = BLOCK.sub("", page.read_text(encoding="utf-8"))
    text = re.sub(r"\[([^\]]*)\]\([^)]*\)", r"\1", text)
    headings = re.findall(r"^#+ +(.+)$", text, flags=re.MULTILINE)
    return {
        re.sub(r"[^\w\- ]", "", heading.lower()).strip().replace(" ", "-") for heading in headings
    }


@pytest.mark.parametrize("page", pages(), ids=name_of)
def test_links_resolve(page: Path) -> None:
    broken = []
    for link in LINK.findall(BLOCK.sub("", page.read_text(encoding="utf-8"))):
        if link.startswith(("http://", "https://", "mailto:")):
            continue
        path, _, anchor = link.partition("#")
        target = (page.parent / path).resolve() if path else page
        if not target.exists() or (anchor and anchor not in anchors(target)):
            broken.append(link)
    assert broken == []


def test_the_reference_is_what_the_code_says() -> None:
    folder = ROOT / "docs" / "reference"
    stale = [
        name
        for name, text in load_script("docs/reference/generate.py").pages().items()
        if not (folder / name).is_file() or (folder / name).read_text(encoding="utf-8") != text
    ]
    assert not stale, f"run `make docs`: {stale}"


def test_the_reference_covers_all_settings_and_describes_each() -> None:
    assert tuple(section_kinds(CarpoolSettings)) == SECTIONS
    text = load_script("docs/reference/generate.py").pages()["settings.md"]
    entries = re.findall(r"^### (\w+\.\w+)\n\n(.*)$", text, flags=re.MULTILINE)
    assert len(entries) > 50
    assert [name for name, description in entries if description.startswith("`CARPOOL_")] == []


def test_every_command_and_metric_says_what_it_does() -> None:
    generate = load_script("docs/reference/generate.py")
    from cli.main import app

    assert [name for name, command in generate.commands(app, "carpool") if not command.help] == []
    lines = generate.pages()["metrics.md"].splitlines()
    assert [line for line in lines if line.startswith("- ") and line.endswith("):")] == []


def test_every_header_that_the_code_names_has_an_entry() -> None:
    literal = re.compile(r'"((?:rag-[a-z-]+|ce_[a-z]+|rag\.errors\.[a-z.]+))"')
    named = {
        header
        for package in PRODUCT
        for source in (ROOT / package).rglob("*.py")
        for header in literal.findall(source.read_text(encoding="utf-8"))
    }
    listed = {each.name for each in HEADERS}
    assert named <= listed | {ERROR_PREFIX}


def test_every_exit_code_that_the_code_uses_has_an_entry() -> None:
    literal = re.compile(r"(?:sys\.exit|typer\.Exit)\((\d+)\)")
    used = {
        int(code)
        for package in ("cli", "bench", "carpool")
        for source in (ROOT / package).rglob("*.py")
        for code in literal.findall(source.read_text(encoding="utf-8"))
    }
    assert used <= EXIT_CODES.keys()


def test_architecture_and_the_pages_of_rooms_link_every_folder() -> None:
    rooms = (ROOT / room for room in (*PRODUCT, "bench"))
    maps = [ROOT / "ARCHITECTURE.md", *(page for room in rooms for page in room.rglob("*.md"))]
    linked = {
        (page.parent / link).resolve()
        for page in maps
        for link in LINK.findall(page.read_text(encoding="utf-8"))
    }
    folders = {
        source.parent
        for package in (*PRODUCT, "bench")
        for source in (ROOT / package).rglob("*.py")
    }
    missing = sorted(name_of(folder) for folder in folders if folder not in linked)
    assert missing == []


def test_blocks_that_are_not_run_are_these() -> None:
    found: dict[str, list[str]] = {}
    for page in runnable_pages():
        for block in blocks_of(page):
            assert block.info in (*RUN, *RUN_NOT, "text"), f"{page}: ```{block.info}"
            if block.info in RUN_NOT:
                found.setdefault(name_of(page), []).append(block.text)
    assert found.keys() == NOT_RUN.keys()
    for name, texts in found.items():
        for text, begin in zip(texts, NOT_RUN[name], strict=True):
            assert text.startswith(begin)
