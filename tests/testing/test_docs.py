"""The examples of docs/testing.md do what the page says."""

from __future__ import annotations

import re
import time
from pathlib import Path
from typing import Any

import numpy as np

from tests.searcher.helpers import ListSink, Running, make_group, normalised, random_index

PAGE = Path(__file__).resolve().parents[2] / "docs" / "testing.md"
EXAMPLES = re.findall(
    r"^```python\n(.*?)^```", PAGE.read_text(encoding="utf-8"), flags=re.MULTILINE | re.DOTALL
)


def run(about: str, **names: Any) -> dict[str, Any]:
    """Runs the one example that has `about` in it, and returns what it named."""
    (example,) = [example for example in EXAMPLES if about in example]
    namespace: dict[str, Any] = {"__name__": "example", **names}
    exec(compile(example, str(PAGE), "exec"), namespace)
    return namespace


def test_a_slow_disk_under_a_searcher(tmp_path: Path) -> None:
    index = random_index(tmp_path / "index")
    example = run("FaultyDisk(", index=index.settings)
    vectors = list(normalised(np.random.default_rng(1).standard_normal((1, 16))))
    with Running(stage=example["stage"], sink=ListSink(), metrics=example["metrics"]) as running:
        running.wait_ready()
        before_s = time.monotonic()
        found = running.search(make_group(index, vectors, clusters=[(0, 1)]))
        assert time.monotonic() - before_s >= 0.2
    assert found["q0-0"].hits and found["q0-0"].skipped_clusters == ()


def test_a_refused_generation() -> None:
    run("llm.refusing(")
