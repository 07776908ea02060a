"""`carpool up`: everything on this machine, as supervised children on loopback, until Ctrl-C."""

from __future__ import annotations

import sys
from pathlib import Path

import typer

from cli.console import people
from cli.options import ConfigOption, SetOption, given, passed_on
from cli.settings import load
from cli.supervise import Interrupted

_INDEX = typer.Option(None, "--index", metavar="DIR", help="Folder of the index.")
_MODEL = typer.Option(
    None,
    "--model",
    metavar="NAME|DIR",
    help="Embedding model: the one that the index was built with.",
)
_LLM = typer.Option(
    None, "--llm", metavar="DIR", help="Folder of the language model that vLLM is to serve."
)
_LLM_URL = typer.Option(
    None, "--llm-url", metavar="URL", help="An LLM server that runs already: no vLLM is started."
)
_LLM_MODEL = typer.Option(
    None, "--llm-model", metavar="NAME", help="With --llm-url: the model to ask for."
)
_BOOTSTRAP = typer.Option(
    None,
    "--bootstrap",
    "-b",
    metavar="HOST:PORT",
    help="Brokers that run already; `embedded`: start one, the default.",
)
_DEMO = typer.Option(
    None,
    "--demo",
    "--demo-questions",
    metavar="FILE",
    help="Ask these questions, one on each line, when all parts are ready.",
)
_EXIT_AFTER_DEMO = typer.Option(
    None,
    "--exit-after-demo/--stay",
    help="After the questions: end, or stay. Default: stay on a terminal.",
)
_STATE_DIR = typer.Option(None, "--state-dir", metavar="DIR", help="Folder for logs and run.json.")


def up(
    index: str | None = _INDEX,
    model: str | None = _MODEL,
    llm: str | None = _LLM,
    llm_url: str | None = _LLM_URL,
    llm_model: str | None = _LLM_MODEL,
    bootstrap: str | None = _BOOTSTRAP,
    demo: Path | None = _DEMO,
    exit_after_demo: bool | None = _EXIT_AFTER_DEMO,
    state_dir: str | None = _STATE_DIR,
    config: ConfigOption = None,
    assignments: SetOption = None,
) -> None:
    """Start everything on this machine: broker, grouper, searcher, generator, vLLM.

    All of it listens on loopback only. Without --bootstrap it starts a broker that keeps records in
    memory. Output goes to files in the state folder; a part that crashes is restarted. One Ctrl-C
    ends everything in order, a second one immediately.

    \b
    Examples:
      carpool up --index .carpool/index
      carpool up --bootstrap kafka:9092 --llm-url http://127.0.0.1:8000/v1 --llm-model my-model
      carpool up --demo questions.txt --exit-after-demo
    """
    from cli.all_settings import CarpoolSettings
    from cli.running import run_everything
    from cli.stack import EMBEDDED, make_plan
    from producers.read_questions import read_questions

    questions = (
        [question.text or "" for question in read_questions(demo)] if demo is not None else []
    )
    is_embedded = bootstrap == EMBEDDED or (
        bootstrap is None and given(config, assignments).is_default("kafka", "bootstrap")
    )
    chosen = given(
        config,
        assignments,
        kafka={"bootstrap": None if is_embedded else bootstrap},
        index={"dir": index},
        embedding={"model": model},
        vllm={"model_dir": llm},
        llm={"base_url": llm_url, "model": llm_model},
        up={"state_dir": state_dir},
    )
    settings = load(CarpoolSettings, chosen)
    plan = make_plan(
        settings,
        is_embedded=is_embedded,
        llm_url=llm_url,
        chooses_passages=chosen.is_default("generator", "passages_max"),
    )
    stays = sys.stdout.isatty() if exit_after_demo is None else not exit_after_demo
    passed = passed_on(config, assignments)
    try:
        run_everything(settings, plan, passed, questions, stays=stays or not questions)
    except Interrupted:
        people().print("stopped")
