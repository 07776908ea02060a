"""The contestants of `carpool bench paper hedrarag`: processes on a broker."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from bench.core.load import even
from bench.core.session import Session, open_session
from bench.core.stack import SERVICES
from bench.services.overhead import bare_hops
from carpool.errors import ConfigError
from carpool.settings import environment_name
from carpool.testing.llm_text import NAME as STAND_IN_MODEL
from producers.read_questions import Question
from schemas.topics import ANSWERS, QUERIES

OF_CARPOOL = {
    ("kafka", "delivery"): "exactly_once",
    ("llm", "model"): STAND_IN_MODEL,
    ("generator", "concurrency"): "32",
    ("generator", "partials"): "false",
    ("generator", "reuse"): "false",
}
"""Settings: as many requests as the server runs at once; no answer of an earlier load is reused."""
ONE_AT_A_TIME = {("grouper", "window_queries_max"): "1", ("grouper", "horizon_windows"): "0"}
BASELINES = ("blocking", "langgraph")
OF_SUBSTAGES = ("no-substages", "fixed-substages")
"""Carpool with other sub-stages of exact searches."""
NAMES = (*BASELINES, "windows-of-one", "carpool")
MODULE = "bench.papers.hedrarag.baselines"
SUBSTAGES = "bench.papers.hedrarag.substages"
WAY = ((QUERIES.name, ANSWERS.name),)
WARM_UP_PER_S, WARM_UP_S = 200.0, 45.0
ROOT = Path(__file__).resolve().parents[3]
LANGGRAPH = ("langgraph==1.2.24", "langgraph-checkpoint-sqlite==3.1.2", "openai==3.52.0")
"""What the environment of the baselines has in addition to the packages of Carpool's services."""


def python_of(folder: Path) -> str:
    """Returns the Python of the environment of the baselines.

    Raises `ConfigError`, which says how to make it, if it has not the packages of `LANGGRAPH`.
    """
    python, found = folder.absolute() / "bin" / "python", ""
    if python.exists():
        listed = [str(python), "-m", "pip", "freeze"]
        found = subprocess.run(listed, capture_output=True, text=True, check=False).stdout
    if missing := {*LANGGRAPH} - {*found.split()}:
        raise ConfigError(
            f"{folder} is no environment with {', '.join(sorted(missing))}. Make it: "
            f"requirements/install {folder} requirements/{{services,models}}.txt && "
            f"{folder}/bin/pip install {' '.join(LANGGRAPH)}; or name another one with --langgraph"
        )
    return str(python)


@contextmanager
def open_contestant(
    name: str, *, index: Path, url: str, work: Path, settings: Mapping[str, str], python: str
) -> Iterator[Session]:
    """Yields a contestant that is ready, on a broker of its own; then ends both.

    `settings` are further ones of Carpool. `python` runs the baselines.
    """
    chosen = OF_CARPOOL | (ONE_AT_A_TIME if name == "windows-of-one" else {})
    given = {environment_name(*setting): value for setting, value in chosen.items()}
    given |= settings
    stack: dict[str, Any] = {"services": SERVICES, "llm_url": url}
    if name in BASELINES:
        stack |= baseline(name, python, work)
    elif name in OF_SUBSTAGES:
        stack["commands"] = {"searcher": (sys.executable, "-m", SUBSTAGES, name)}
    topics = (ANSWERS.name,)
    with open_session(index, work, given, brokers=1, topics=topics, **stack) as session:
        warm_up(session.stack.bootstrap, given, work)
        yield session


def baseline(name: str, python: str, work: Path) -> dict[str, Any]:
    """Returns the arguments of `Stack` for a process of `MODULE`, without earlier checkpoints."""
    checkpoints = work / "checkpoints.sqlite"
    for old in work.glob(f"{checkpoints.name}*"):
        old.unlink()
    command = (python, "-m", MODULE, str(checkpoints) if name == "langgraph" else "")
    return {"services": (name,), "commands": {name: command}, "python_path": ROOT}


def kill_and_restart(session: Session) -> None:
    """Kills all processes of a contestant, and starts them again. Blocks."""
    for process in session.stack.services():
        process.kill()
    session.stack.start()


def warm_up(bootstrap: str, settings: Mapping[str, str], work: Path) -> None:
    """Lets a bare hop copy questions, until Java has compiled. Blocks for `WARM_UP_S`."""
    own = {**settings, "CARPOOL_KAFKA_PREFIX": "warm-up"}
    topics, count = (ANSWERS.name,), round(WARM_UP_PER_S * WARM_UP_S)
    with (
        open_session(Path(), work, own, services=(), bootstrap=bootstrap, topics=topics) as session,
        bare_hops(WAY, bootstrap, own, work),
    ):
        questions = [Question(text=f"Question {number}?") for number in range(count)]
        session.recorder.wait(session.send(questions, even(WARM_UP_PER_S)).keys())
