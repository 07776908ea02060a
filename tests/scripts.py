"""Scripts of the tree that no package has."""

from __future__ import annotations

import importlib.util
from pathlib import Path
from types import ModuleType


def load_script(path: str) -> ModuleType:
    """Returns a script of the tree as a module."""
    spec = importlib.util.spec_from_file_location(Path(path).stem, Path(__file__).parents[1] / path)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module
