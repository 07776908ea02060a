"""Commands whose options are the fields of a record, and options that benchmarks share.

Light to import.
"""

from __future__ import annotations

import importlib
import inspect
from collections.abc import Callable
from pathlib import Path
from typing import Annotated, Any, get_type_hints

import msgspec
import typer
from typer import Option

WORK = Path(".carpool/bench")
"""Where indexes and logs are by default."""
NOT_REPORTED = "data index json_file langgraph model nlist other_revision out work"
"""Options that say where a run reads and writes; the report names these facts elsewhere."""

DataOption = Annotated[
    Path | None, Option(metavar="DIR", help="Evaluation data; else CARPOOL_DATA.")
]
JsonOption = Annotated[
    Path | None, Option("--json", metavar="FILE", help="The report as JSON; -: to standard output.")
]
WorkOption = Annotated[Path, Option(metavar="DIR", help="Index and logs, on a disk with O_DIRECT.")]
ServiceSettingOption = Annotated[
    list[str],
    Option(
        "--set",
        metavar="SECTION.NAME=VALUE",
        help="A setting of the services, such as grouper.policy=greedy; may be repeated.",
    ),
]
NprobeOption = Annotated[int, Option(min=1, help="Clusters a question probes.")]
SeedOption = Annotated[
    int, Option(min=0, max=2**31 - 1, help="Seed of clusters, and of what is drawn.")
]
"""The limit is that of FAISS."""


class ServiceOptions(msgspec.Struct, frozen=True, kw_only=True):
    """The options of every benchmark of the services."""

    work: WorkOption = WORK
    settings: ServiceSettingOption = []
    json_file: JsonOption = None


def command_of(options: type[msgspec.Struct], module: str) -> Callable[..., None]:
    """Returns a command of typer: one option for each field of `options`, whose docstring is help.

    It imports `module`, and gives the options to `run` there, which blocks, prints and writes the
    report, returns whether every promise was kept, and raises `CarpoolError`. It exits with status
    1 where a promise was broken.
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
            default=inspect.Parameter.empty if field.required else _default_of(field),
            annotation=types[field.name],
        )
        for field in msgspec.structs.fields(options)
    ]
    vars(asked)["__signature__"] = inspect.Signature(parameters)
    return asked


def _default_of(field: msgspec.structs.FieldInfo) -> Any:
    has_factory = field.default_factory is not msgspec.NODEFAULT
    return field.default_factory() if has_factory else field.default


def reported(options: msgspec.Struct) -> dict[str, Any]:
    """Returns `options` for the report, without folders and files."""
    return {
        name: value
        for name, value in msgspec.to_builtins(options, enc_hook=str).items()
        if name not in NOT_REPORTED.split()
    }
