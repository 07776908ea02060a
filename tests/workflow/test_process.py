"""Programs of users in a child process: what they do ends their own workflow, and nothing else."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest

from carpool.guard import GuardedProcess
from carpool.workflow import Found, Retrieve
from carpool.workflow.process import ModuleProcess
from carpool.workflow.program import Program, Ran, RunRequest
from carpool.workflow.resume import resume
from carpool.workflow.steps import AnswerStep, Generate, Said, WorkflowError
from schemas.workflow import StepResult
from tests.records import some_hits
from tests.waiting import wait_until
from tests.workflow import hostile


@pytest.fixture(scope="module")
def module() -> Iterator[ModuleProcess]:
    process = ModuleProcess(hostile.__file__)
    process.programs = {each.name: each for each in process.start()}  # type: ignore[attr-defined]
    yield process
    process.close()


def after(program: Program, *rounds: Sequence[StepResult]) -> RunRequest:
    return RunRequest(
        name=program.name, version=program.version, question="why?", rounds=rounds, steps_max=24
    )


def asked(program: Program, *results: StepResult) -> RunRequest:
    return after(program, *((result,) for result in results))


def program_of(module: ModuleProcess, name: str) -> Program:
    program: Program = module.programs[name]  # type: ignore[attr-defined]
    return program


SEARCHED = StepResult(digest=Retrieve("why?").digest(), text="why?", hits=some_hits(2))


@pytest.mark.parametrize("name", hostile.SAID)
def test_a_hostile_program_ends_alone_and_says_why(module: ModuleProcess, name: str) -> None:
    results = (SEARCHED,) if name == "exits" else ()
    with pytest.raises(WorkflowError) as error:
        module.run(asked(program_of(module, name), *results))
    assert re.search(f"{name}@1, {hostile.SAID[name]}", str(error.value))
    good = module.run(asked(program_of(module, "good")))
    assert good.steps == (Retrieve("why?"),)


def test_a_child_asks_for_the_steps_that_the_program_asks_for_in_process(
    module: ModuleProcess,
) -> None:
    theirs, ours = program_of(module, "good"), hostile.good
    assert (theirs.digest, theirs.doc) != ("", "") and theirs.doc == ours.doc
    results: list[StepResult] = []
    for text in ("", "Because.", ""):
        request = asked(theirs, *results)
        there, here = module.run(request), resume(ours, "why?", request.rounds)
        assert there.digests == here.digests
        (step,) = there.steps
        hits = some_hits(2) if isinstance(step, Retrieve) else None
        results.append(StepResult(digest=there.digests[0], text=text or "why?", hits=hits))
    assert isinstance(step, AnswerStep) and step.passages == Found(some_hits(2))
    assert step.values["question"] == "why? Because."


VALUES = """
from carpool.workflow import Answer, Found, Generate, Retrieve, workflow

@workflow("values", version=1)
def values(question):
    found = yield [Retrieve(question), Retrieve(question, top_k=1)]
    said = yield Generate("x", seed=3, temperature=0.5, max_tokens=7, passages_max=2,
                          a=True, b=2, c=0.5, d=[], e=["x"], f=[("x", question)],
                          g=list(found[1]), h=Found(), i=found[0])
    return Answer(text=said, passages=found[0][1:])
"""


def test_every_kind_of_value_comes_through_unchanged(
    tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    (tmp_path / "values.py").write_text(VALUES)
    process = ModuleProcess(str(tmp_path / "values.py"))
    (program,) = process.start()
    request.addfinalizer(process.close)
    searched = tuple(
        StepResult(digest=Retrieve("why?", k).digest(), text="why?", hits=some_hits(2))
        for k in (None, 1)
    )
    (step,) = process.run(after(program, searched)).steps
    assert isinstance(step, Generate)
    assert (step.seed, step.temperature, step.max_tokens, step.passages_max) == (3, 0.5, 7, 2)
    hits = Found(some_hits(2))
    numbers, texts = {"a": True, "b": 2, "c": 0.5}, {"d": [], "e": ["x"], "f": [["x", "why?"]]}
    passages = {"g": hits, "h": Found(), "i": hits}
    assert dict(step.values) == numbers | texts | passages
    said = (StepResult(digest=step.digest(), text="So.", is_cut=True, output_tokens=4),)
    answer = process.run(after(program, searched, said)).answer
    assert answer is not None and answer.written == Said("So.", tokens=4, is_cut=True)
    assert answer.passages == hits[1:]


def test_a_program_that_kills_its_child_waits_behind_the_others(module: ModuleProcess) -> None:
    ended: list[str] = []

    def submit(name: str) -> None:
        def then(ran: Ran) -> None:
            ended.append(name)

        module.submit(asked(program_of(module, name)), then, lambda: True)

    for name in ("counts", "counts", "counts", *["good"] * 20):
        submit(name)
    wait_until(lambda: len(ended) == 23)
    assert ended == ["good"] * 20 + ["counts"] * 3


def test_a_workflow_that_is_withdrawn_while_it_waits_is_not_run(module: ModuleProcess) -> None:
    ended: list[Ran] = []
    good = program_of(module, "good")
    module.submit(asked(good), ended.append, lambda: False)
    assert module.run(asked(good)).steps == (Retrieve("why?"),)
    assert ended == []


def children(parent: int) -> list[int]:
    tasks = Path(f"/proc/{parent}/task").iterdir()
    return [int(pid) for task in tasks for pid in (task / "children").read_text().split()]


def is_running(pid: int) -> bool:
    try:
        return "\nState:\tZ" not in Path(f"/proc/{pid}/status").read_text()
    except OSError:
        return False


SERVICE = """
import os, sys, time
from carpool.workflow.load import load_programs
os.environ["CARPOOL_LLM_API_KEY"] = "secret"
load_programs(sys.argv[1])
print("loaded", flush=True)
time.sleep(600)
"""


def test_the_child_has_no_secrets_and_bounded_memory_and_ends_with_its_service() -> None:
    environment = {**os.environ, "CARPOOL_KAFKA_SASL_PASSWORD": "secret"}
    with GuardedProcess[bytes](
        [sys.executable, "-c", SERVICE, hostile.__file__], stdout=subprocess.PIPE, env=environment
    ) as service:
        assert service.stdout is not None and service.stdout.readline() == b"loaded\n"
        (child,) = children(service.pid)
        environ = Path(f"/proc/{child}/environ").read_bytes()
        assert environ == b"PYTHONHASHSEED=0\0"
        limits = Path(f"/proc/{child}/limits").read_text()
        assert "268435456" in next(line for line in limits.splitlines() if "address" in line)
        service.send_signal(signal.SIGKILL)
        service.wait()
        wait_until(lambda: not is_running(child))


def test_a_fresh_child_runs_what_was_loaded_not_what_the_file_holds_now(
    tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    file = tmp_path / "mine.py"
    file.write_text(Path(hostile.__file__).read_text())
    process = ModuleProcess(str(file))
    programs = {each.name: each for each in process.start()}
    request.addfinalizer(process.close)
    file.write_text("half of a fi")
    with pytest.raises(WorkflowError, match="twice"):
        process.run(asked(programs["counts"]))
    assert process.run(asked(programs["good"])).steps == (Retrieve("why?"),)


def test_an_error_of_what_follows_a_program_stops_no_other_program(module: ModuleProcess) -> None:
    good = program_of(module, "good")

    def then(ran: Ran) -> None:
        raise ZeroDivisionError

    module.submit(asked(good), then, lambda: True)
    ended: list[Ran] = []
    module.submit(asked(good), ended.append, lambda: True)
    wait_until(lambda: len(ended) == 1)
