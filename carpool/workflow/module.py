"""Loads a module of programs into this process: checked, then run.

A module may import little, because its programs must be pure. The check keeps mistakes out, not
attackers.
"""

from __future__ import annotations

import ast
import importlib.util
import linecache
import sys
from collections.abc import Iterable
from pathlib import Path
from types import ModuleType

from carpool.errors import ConfigError
from carpool.workflow.program import Program

MAY_IMPORT = frozenset(
    {
        "__future__",
        "carpool.workflow",
        "collections",
        "collections.abc",
        "dataclasses",
        "enum",
        "functools",
        "itertools",
        "json",
        "math",
        "re",
        "string",
        "textwrap",
        "typing",
        "unicodedata",
    }
)
"""What a module of programs may import: nothing with a clock, randomness, network or files."""
MAY_NOT_USE = frozenset({"open", "eval", "exec", "compile", "input", "__import__", "id", "hash"})


def load_module(name: str, text: str | None = None) -> tuple[list[Program], str]:
    """Returns the programs of a module, and its source. Raises `ConfigError`.

    `name`: of a .py file or a module. `text`: its source, instead of what the file holds now.
    """
    try:
        path = _path_of(name)
        text = path.read_text(encoding="utf-8") if text is None else text
        check_source(text, name)
        module = _run(path, text)
    except ConfigError:
        raise
    except BaseException as error:
        raise ConfigError(
            f"the workflows of {name} cannot be loaded: {type(error).__name__}: {error}; see "
            "workflow.modules"
        ) from error
    found = [value for value in vars(module).values() if isinstance(value, Program)]
    if not found:
        raise ConfigError(f"{name} has no workflow: decorate a generator function with @workflow")
    return found, text


def _path_of(name: str) -> Path:
    if Path(name).suffix == ".py":
        return Path(name)
    spec = importlib.util.find_spec(name)
    if spec is None or spec.origin is None:
        raise ConfigError(f"there is no module {name!r}; see workflow.modules")
    return Path(spec.origin)


def _run(path: Path, text: str) -> ModuleType:
    module = ModuleType(f"carpool_workflows_{path.stem}")
    module.__file__ = str(path)
    sys.modules[module.__name__] = module
    # `inspect` finds the source of a program there, whatever the file holds now.
    linecache.cache[str(path)] = (len(text), None, text.splitlines(keepends=True), str(path))
    exec(compile(text, path, "exec"), module.__dict__)  # noqa: S102
    return module


def check_source(text: str, name: str) -> None:
    """Raises `ConfigError` where a module imports or calls what a program may not use."""
    for node in ast.walk(ast.parse(text, name)):
        for imported in _imports(node):
            if imported not in MAY_IMPORT:
                raise ConfigError(
                    f"{name}, line {getattr(node, 'lineno', 0)}: a workflow may not import "
                    f"{imported!r}: it is run again after each step, and must ask for the same "
                    f"steps. It may import: {', '.join(sorted(MAY_IMPORT))}"
                )
        if isinstance(node, ast.Name) and node.id in MAY_NOT_USE:
            raise ConfigError(f"{name}, line {node.lineno}: a workflow may not use {node.id}")


def _imports(node: ast.AST) -> Iterable[str]:
    if isinstance(node, ast.Import):
        return [alias.name for alias in node.names]
    if isinstance(node, ast.ImportFrom):
        return ["." * node.level + (node.module or "")]
    return []
