"""`carpool up`: everything on this machine, as supervised children on loopback, until Ctrl-C."""

from __future__ import annotations

import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import msgspec
import typer

from carpool.errors import ConfigError
from cli.console import people
from cli.options import Config, spread
from cli.running import run_everything
from cli.settings import CarpoolSettings, Given, load
from cli.stack import EMBEDDED, make_plan, newest_index
from cli.supervise import Interrupted
from producers.read_questions import read_questions


@dataclass(frozen=True, kw_only=True)
class UpOptions:
    """What is started, and what runs already."""

    index: Annotated[str | None, typer.Option(metavar="DIR", help="Folder of the index.")] = None
    model: Annotated[
        str | None,
        typer.Option(
            metavar="NAME|DIR", help="Embedding model: the one that the index was built with."
        ),
    ] = None
    llm: Annotated[
        str | None,
        typer.Option(metavar="DIR", help="Folder of the language model that vLLM is to serve."),
    ] = None
    llm_url: Annotated[
        str | None,
        typer.Option(metavar="URL", help="An LLM server that runs already: no vLLM is started."),
    ] = None
    llm_model: Annotated[
        str | None, typer.Option(metavar="NAME", help="With --llm-url: the model to ask for.")
    ] = None
    bootstrap: Annotated[
        str | None,
        typer.Option(
            "--bootstrap",
            "-b",
            metavar="HOST:PORT",
            help="Brokers that run already; `embedded`: start one, the default.",
        ),
    ] = None
    demo: Annotated[
        Path | None,
        typer.Option(
            "--demo",
            metavar="FILE",
            help="Ask these questions, one on each line, when all parts are ready.",
        ),
    ] = None
    exit_after_demo: Annotated[
        bool | None,
        typer.Option(
            "--exit-after-demo/--stay",
            help="After the questions: end, or stay. Default: stay on a terminal.",
        ),
    ] = None
    state_dir: Annotated[
        str | None, typer.Option(metavar="DIR", help="Folder for logs and run.json.")
    ] = None

    def given(self, sources: Config, *, is_embedded: bool) -> Given:
        """Returns the sources of the settings, these options among them."""
        return sources.given(
            kafka={"bootstrap": None if is_embedded else self.bootstrap},
            index={"dir": self.index},
            embedding={"model": self.model},
            vllm={"model_dir": self.llm},
            llm={"base_url": self.llm_url, "model": self.llm_model},
            up={"state_dir": self.state_dir},
        )


@spread
def up(options: UpOptions, *, sources: Config) -> None:
    """Start everything on this machine: broker, services, gateway, vLLM.

    Without an index it begins with an empty corpus: put documents into it (`carpool corpus put`).
    All of it listens on loopback only. Without --bootstrap it starts a broker that keeps records in
    memory; the documents that were put are saved at the end, and are there the next time. Output
    goes to files in the state folder; a part that crashes is restarted. One Ctrl-C ends everything
    in order, a second one immediately.

    \b
    Examples:
      carpool up --index .carpool/index
      carpool up --bootstrap kafka:9092 --llm-url http://127.0.0.1:8000/v1 --llm-model my-model
      carpool up --demo questions.txt --exit-after-demo
    """
    questions = [one.text or "" for one in read_questions(options.demo)] if options.demo else []
    is_embedded = options.bootstrap == EMBEDDED or (
        options.bootstrap is None and sources.given().is_default("kafka", "bootstrap")
    )
    chosen = options.given(sources, is_embedded=is_embedded)
    settings = begun(load(CarpoolSettings, chosen), is_embedded=is_embedded)
    plan = make_plan(
        settings,
        is_embedded=is_embedded,
        llm_url=options.llm_url,
        chooses_passages=chosen.is_default("generator", "passages_max"),
    )
    ends = options.exit_after_demo
    stays = sys.stdout.isatty() if ends is None else not ends
    try:
        run_everything(settings, plan, sources.passed_on(), questions, stays=stays or not questions)
    except Interrupted:
        people().print("stopped")


def begun(settings: CarpoolSettings, *, is_embedded: bool) -> CarpoolSettings:
    """Returns settings whose index exists: where there was none, an empty one was made. Blocks.

    Raises `ConfigError` where that is not possible.
    """
    folder = newest_index(settings, is_embedded=is_embedded)
    if not folder:
        folder = settings.index.dir
        people().print(
            f"there is no index at {folder}: beginning with an empty corpus. The first time on a "
            "machine, the embedding model is prepared: half a minute"
        )
        command = [sys.executable, "-P", "-m", "carpool", "index", "build", "--empty"]
        options = ["--out", folder, "--model", settings.embedding.model]
        made = subprocess.run(  # its imports take 100 MB
            [*command, *options], capture_output=True, text=True, check=False
        )
        if made.returncode:
            raise ConfigError(f"no empty index could be made at {folder}: {made.stderr.strip()}")
    index = msgspec.structs.replace(settings.index, dir=folder)
    return msgspec.structs.replace(settings, index=index)
