"""The examples of docs/testing.md do what the page says."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

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


def test_a_refused_generation() -> None:
    run("llm.refusing(")
