"""Loads programs: the built-in ones, and those of modules that an operator names.

A module of programs may import little, because its programs must be pure. It is checked before it
is run. That keeps mistakes out, not attackers: an operator's module runs inside the services.
"""

from __future__ import annotations

import ast
import importlib
import importlib.util
import sys
from collections.abc import Iterable
from pathlib import Path
from types import MappingProxyType, ModuleType

from carpool.errors import ConfigError
from carpool.workflow import programs as built_in
from carpool.workflow.journal import Workflows
from carpool.workflow.program import Program, Programs
from carpool.workflow.settings import WorkflowSettings

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
MAY_NOT_USE = frozenset(
    {"open", "eval", "exec", "compile", "input", "__import__", "id", "hash", "BaseException"}
)


def load_workflows(settings: WorkflowSettings) -> Workflows:
    """Returns the workflows of a service. Raises `ConfigError`."""
    return Workflows(
        programs=load_programs(settings.modules),
        steps_max=settings.steps_max,
        tokens_max=settings.tokens_max,
    )


def load_programs(modules: str = "") -> Programs:
    """Returns the built-in programs and those of `modules`, names or .py files with commas between.

    Raises `ConfigError` that names module and line.
    """
    found: dict[tuple[str, int], Program] = {}
    reserved = {module.__name__.rpartition(".")[2] for module in built_in.MODULES}
    for module in (*built_in.MODULES, *map(load_module, _names(modules))):
        for program in vars(module).values():
            if isinstance(program, Program):
                key = (program.name, program.version)
                if program.name in reserved and module not in built_in.MODULES:
                    raise ConfigError(
                        f"{module.__file__}: {program.name} is a built-in workflow; choose another "
                        "name"
                    )
                if found.get(key, program).digest != program.digest:
                    raise ConfigError(
                        f"{module.__file__}: there are two programs {program.label}; raise the "
                        "version"
                    )
                found[key] = program
    return MappingProxyType(found)


def load_module(name: str) -> ModuleType:
    """Returns a module of programs, checked and run. Raises `ConfigError`."""
    path = Path(name)
    try:
        if path.suffix == ".py":
            check_source(path.read_text(encoding="utf-8"), name)
            spec = importlib.util.spec_from_file_location(f"carpool_workflows_{path.stem}", path)
        else:
            spec = importlib.util.find_spec(name)
            if spec is not None and spec.origin is not None:
                check_source(Path(spec.origin).read_text(encoding="utf-8"), spec.origin)
        if spec is None or spec.loader is None:
            raise ConfigError(f"there is no module {name!r}; see workflow.modules")
        module = importlib.util.module_from_spec(spec)
        sys.modules[spec.name] = module
        spec.loader.exec_module(module)
    except ConfigError:
        raise
    except Exception as error:
        raise ConfigError(
            f"the workflows of {name} cannot be loaded: {type(error).__name__}: {error}; see "
            "workflow.modules"
        ) from error
    if not any(isinstance(value, Program) for value in vars(module).values()):
        raise ConfigError(f"{name} has no workflow: decorate a generator function with @workflow")
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
        if isinstance(node, ast.ExceptHandler) and node.type is None:
            raise ConfigError(
                f"{name}, line {node.lineno}: a workflow may not catch everything, because an "
                "endless loop is ended by an exception; write `except Exception:`"
            )


def _imports(node: ast.AST) -> Iterable[str]:
    if isinstance(node, ast.Import):
        return [alias.name for alias in node.names]
    if isinstance(node, ast.ImportFrom):
        return ["." * node.level + (node.module or "")]
    return []


def _names(modules: str) -> list[str]:
    return [name for part in modules.split(",") if (name := part.strip())]
