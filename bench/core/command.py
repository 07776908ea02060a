"""Commands whose options are the fields of a record, so that each option is declared once.

Light to import.
"""

from __future__ import annotations

import importlib
import inspect
from collections.abc import Callable
from typing import Any, get_type_hints

import msgspec
import typer

NOT_REPORTED = ("data", "index", "json_file", "model", "nlist", "out", "work")
"""Options that say where a run reads and writes; the report names these facts elsewhere."""


def command_of(options: type[msgspec.Struct], module: str) -> Callable[..., None]:
    """Returns a command of typer: one option for each field of `options`, whose docstring is help.

    When it runs it imports `module`, and gives the options to `run` there. It exits with status 1
    when that returns False: a promise was broken.
    """
    types = get_type_hints(options, include_extras=True)

    def asked(**given: Any) -> None:
        if not importlib.import_module(module).run(options(**given)):
            raise typer.Exit(1)

    asked.__doc__, asked.__annotations__ = options.__doc__, types
    parameters = [
        inspect.Parameter(
            field.name,
            inspect.Parameter.KEYWORD_ONLY,
            default=_default_of(field),
            annotation=types[field.name],
        )
        for field in msgspec.structs.fields(options)
    ]
    vars(asked)["__signature__"] = inspect.Signature(parameters)
    return asked


def _default_of(field: msgspec.structs.FieldInfo) -> Any:
    if field.default is not msgspec.NODEFAULT:
        return field.default
    if field.default_factory is not msgspec.NODEFAULT:
        return field.default_factory()
    return inspect.Parameter.empty  # the option must be given


def reported(options: msgspec.Struct) -> dict[str, Any]:
    """Returns `options` for the report, without folders and files."""
    return {
        name: value
        for name, value in msgspec.to_builtins(options, enc_hook=str).items()
        if name not in NOT_REPORTED
    }
