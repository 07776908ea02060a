"""Programs: functions that are workflows, each with its name, version and digest. Pure."""

from __future__ import annotations

import ast
import hashlib
import inspect
import re
import sys
from collections.abc import Callable, Generator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

from carpool.errors import ConfigError
from carpool.workflow.steps import AnswerStep, Step

STEPS_MAX = 12
NAME = re.compile(r"[a-z][a-z0-9_-]{0,63}")

Asks: TypeAlias = Step | Sequence[Step]
Run: TypeAlias = Generator[Asks, Any, AnswerStep]


@dataclass(frozen=True, kw_only=True, slots=True)
class Program:
    """A workflow that can be run. `function` gets the question and returns a generator of steps.

    `digest`: of its source, without comments; a workflow goes on only with the digest that it began
    with. `summary`: the first line of its docstring.
    """

    name: str
    version: int
    function: Callable[[str], Run]
    digest: str
    steps_max: int = STEPS_MAX
    summary: str = ""

    @property
    def label(self) -> str:
        """The program in messages: `name@version`."""
        return f"{self.name}@{self.version}"


Programs: TypeAlias = Mapping[tuple[str, int], Program]
"""The programs of a service, by name and version."""


def workflow(
    name: str, *, version: int, steps_max: int = STEPS_MAX
) -> Callable[[Callable[[str], Run]], Program]:
    """Makes a program of a generator function. `version`: raise it with every change.

    `steps_max`: steps of a run, without the answer. Raises `ConfigError` where a name cannot be one
    or the function yields nothing.
    """
    if not NAME.fullmatch(name):
        raise ConfigError(
            f"{name!r} cannot name a workflow: use small letters, digits, - and _, at most 64"
        )

    def made(function: Callable[[str], Run]) -> Program:
        if not inspect.isgeneratorfunction(function):
            raise ConfigError(f"workflow {name!r} yields no step; see `carpool workflows`")
        return Program(
            name=name,
            version=version,
            function=function,
            digest=source_digest(sys.modules[function.__module__]),
            steps_max=steps_max,
            summary=(inspect.getdoc(function) or "").partition("\n")[0],
        )

    return made


def source_digest(module: object) -> str:
    """Returns a digest of the source of a module, the same where only comments differ."""
    return text_digest(ast.unparse(ast.parse(inspect.getsource(module))))  # type: ignore[arg-type]


def text_digest(text: str) -> str:
    """Returns the digest of a text (BLAKE2b, hexadecimal)."""
    return hashlib.blake2b(text.encode(), digest_size=16).hexdigest()


def find(programs: Programs, name: str, version: int | None = None) -> Program | None:
    """Returns the program of this name and version, or the newest version of the name."""
    versions = [each for (known, _), each in programs.items() if known == name]
    if version is not None:
        return programs.get((name, version))
    return max(versions, key=lambda program: program.version, default=None)
