"""A command that is made of a record of options."""

from __future__ import annotations

import sys
from types import ModuleType
from typing import Annotated, Any

import msgspec
import pytest
import typer
from typer.testing import CliRunner

from bench.core.options import command_of


class Options(msgspec.Struct, frozen=True, kw_only=True):
    """Does it pay?"""

    rate_per_s: Annotated[float, typer.Option("--rate", min=1)] = 5.0
    names: Annotated[list[str], typer.Option("--name")] = []


@pytest.mark.parametrize(
    ("arguments", "status", "asked"),
    [
        ([], 0, Options()),
        (["--rate", "2", "--name", "a", "--name", "b"], 1, Options(rate_per_s=2, names=["a", "b"])),
        (["--rate", "0"], 2, None),
    ],
)
def test_options_reach_the_run_and_a_broken_promise_ends_with_1(
    arguments: list[str],
    status: int,
    asked: Options | None,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    seen: list[Any] = []

    def run(options: Options) -> bool:
        seen.append(options)
        return not options.names

    module = ModuleType("started")
    vars(module)["run"] = run
    monkeypatch.setitem(sys.modules, "started", module)
    app = typer.Typer()
    app.command()(command_of(Options, "started"))
    assert CliRunner().invoke(app, arguments).exit_code == status
    assert seen == ([] if asked is None else [asked])
    assert "Does it pay?" in CliRunner().invoke(app, ["--help"]).output
