"""The life of `carpool up`: start in order, wait, show, ask, keep running, end in order."""

from __future__ import annotations

import asyncio
import os
import shlex
import threading
import time
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from pathlib import Path

import msgspec
from rich.console import Console
from rich.text import Text

from carpool.clock import SystemClock
from carpool.errors import CarpoolError, ConfigError
from carpool.kafka.admin import create_topics
from carpool.kafka.embedded import LIMITS
from carpool.kafka.settings import KafkaSettings
from carpool.kafka.topic_reader import TopicReader
from cli.answers import ANSWERED, answer_text, has_evidence, timing_table
from cli.console import output, people
from cli.runfile import Run, RunFile
from cli.settings import CarpoolSettings, UpSettings
from cli.stack import (
    STOP_ORDER,
    StackPlan,
    broker_spec,
    gateway_spec,
    reserve,
    service_specs,
    vllm_spec,
)
from cli.supervise import Interrupted, Part, Supervisor
from producers import Client
from producers.corpus.log import corpus_state
from producers.corpus.save import save_base
from producers.settings import ClientSettings
from schemas.answer import Answer
from schemas.topics import DOCUMENTS

LOOK_S = 0.3


def run_everything(
    settings: CarpoolSettings,
    plan: StackPlan,
    passed: Sequence[str],
    questions: Sequence[str],
    *,
    stays: bool,
) -> None:
    """Starts the plan, asks the questions, and with `stays` runs until Ctrl-C; then ends
    everything.

    Raises `Interrupted` after an orderly end by signal, `CarpoolError` when a part failed.
    """
    console = people()
    run_file = RunFile(Path(settings.up.state_dir))
    other, is_ours = run_file.read(), reserve(str(run_file.path.resolve()))
    if not is_ours or (other is not None and other.pid != os.getpid()):
        raise ConfigError(
            f"`carpool up` runs here already (process {other.pid if other else 'new'}, state in "
            f"{settings.up.state_dir}): end it first, or give this"
            " one a folder of its own with --state-dir"
        )
    supervisor = Supervisor(
        settings.up.ready_timeout_s, note=lambda line: console.print(line, style="yellow")
    )
    run = Run(
        pid=os.getpid(), bootstrap=plan.bootstrap, prefix=settings.kafka.prefix, http=plan.http
    )
    with supervisor:
        try:
            run_file.write(run)
            _start(supervisor, settings, plan, passed, console)
            run_file.write(msgspec.structs.replace(run, is_ready=True))
            tell_ready(plan, settings, console)
            if questions:
                _ask(supervisor, settings, plan, questions)
            if stays:
                console.print("Ctrl-C ends all.")
                supervisor.watch()
        except Interrupted:
            console.print("ending everything in order (Ctrl-C again: immediately)")
            raise
        finally:
            states = {part.state for part in supervisor.parts()}
            if plan.broker_port is not None and states == {"ready"}:
                kafka = msgspec.structs.replace(settings.kafka, bootstrap=plan.bootstrap)
                _save_corpus(kafka, settings.client, console, lambda: supervisor.signals > 1)
            supervisor.stop(STOP_ORDER)
            run_file.remove()


def ask_command(settings: UpSettings) -> str:
    """Returns the command that asks a question of this run, from another shell."""
    other = (
        []
        if settings.state_dir == UpSettings().state_dir
        else ["--set", f"up.state_dir={settings.state_dir}"]
    )
    return " ".join(["carpool", "ask", *map(shlex.quote, other), '"Who wrote Moby-Dick?"'])


def _start(
    supervisor: Supervisor,
    settings: CarpoolSettings,
    plan: StackPlan,
    passed: Sequence[str],
    console: Console,
) -> None:
    show = _changes(supervisor, console)
    if plan.broker_port is not None:
        supervisor.start(broker_spec(plan, settings.up))
        supervisor.wait_ready(show)
    # Before any client looks for them: a broker that makes topics on demand would make them in
    # another shape.
    create_topics(msgspec.structs.replace(settings.kafka, bootstrap=plan.bootstrap))
    if plan.vllm_port is not None:
        supervisor.start(vllm_spec(plan, settings))
    if plan.shares_gpu:
        # vLLM takes for its own what others allocate on the GPU while it starts.
        supervisor.wait_ready(show)
    for spec in (*service_specs(plan, settings, passed), gateway_spec(plan, settings, passed)):
        supervisor.start(spec)
    supervisor.wait_ready(show)


def tell_ready(plan: StackPlan, settings: CarpoolSettings, console: Console) -> None:
    """Prints what to know of this plan, and how to ask."""
    from gateway.keys import environment_line

    if plan.broker_port is not None:
        console.print(LIMITS, style="dim")
    if plan.passages_max is not None:
        console.print(
            f"{plan.llm_model} is a small model and mixes passages up, so a prompt has "
            f"{plan.passages_max} passage, the best one of each search; "
            "generator.passages_max sets another number"
        )
    console.print(
        f"Everything is ready. Logs: {settings.up.state_dir}. Ask, in another shell:  "
        f"{ask_command(settings.up)}"
    )
    line = environment_line(settings.gateway, plan.gateway_port)
    console.print(f"Or by OpenAI's SDK:  {line}", soft_wrap=True)
    console.print("Put documents, which are found a moment later:  carpool corpus put FOLDER")


def _ask(
    supervisor: Supervisor, settings: CarpoolSettings, plan: StackPlan, questions: Sequence[str]
) -> None:
    """Asks one question after the other, on a thread of its own, and prints what they got."""
    console, answers = output(), list[Answer]()
    kafka = msgspec.structs.replace(settings.kafka, bootstrap=plan.bootstrap)
    stopping, asked = threading.Event(), Future[None]()

    async def ask_all() -> None:
        async with Client(kafka=kafka, settings=settings.client) as client:
            for number, question in enumerate(questions, start=1):
                if stopping.is_set():
                    return
                answers.append(await client.ask(question))
                console.print()
                console.print(Text(f"{number}. {question}", style="bold"))
                console.print(answer_text(answers[-1]))

    def run() -> None:
        try:
            asked.set_result(asyncio.run(ask_all()))
        except BaseException as error:
            asked.set_exception(error)

    threading.Thread(target=run, name="carpool-demo", daemon=True).start()
    try:
        supervisor.watch(asked.done)
    finally:
        stopping.set()
    if answers:
        console.print()
        console.print(timing_table(answers))
        console.print(summary(answers, len(questions)), soft_wrap=True)
    if (error := asked.exception()) is not None:
        is_known = isinstance(error, CarpoolError)
        raise error if is_known else CarpoolError(f"the demo failed: {error!r}")
    console.print(f"Ask another:  {ask_command(settings.up)}")


def _changes(supervisor: Supervisor, console: Console) -> Callable[[], None]:
    """Returns a function that prints a line for each part that has changed."""
    told: dict[str, str] = {}

    def tell() -> None:
        for part in supervisor.parts():
            line = _line(part)
            if told.get(part.spec.name) != line:
                told[part.spec.name] = line
                console.print(
                    f"{line} after {part.since_s:.1f} s" if part.state == "ready" else line
                )

    return tell


def _line(part: Part) -> str:
    return f"{part.spec.name}: {part.state}" + (
        f" ({part.missing})" if part.missing else f" at {part.spec.address}"
    )


def summary(answers: Sequence[Answer], asked: int) -> str:
    """Returns a line: how many of `asked` questions have an answer that can be checked."""
    checkable = sum(map(has_evidence, answers))
    cut = sum(answer.status == "partial" for answer in answers)
    grounded = [answer for answer in answers if answer.grounded]
    marked = sum(
        any(one.quote and one.by == "model" for one in each.citations) for each in grounded
    )
    quoted = sum(bool(answer.quotes) for answer in answers if answer.status in ANSWERED)
    return (
        f"{checkable} of {asked} answered from passages"
        f"{f' ({cut} cut short)' if cut else ''}. {len(grounded)} have a passage that supports "
        f"them ({marked} by a marker of the model), {quoted} show a quote."
    )


def _save_corpus(
    kafka: KafkaSettings, client: ClientSettings, console: Console, is_over: Callable[[], bool]
) -> None:
    """Saves the documents that were put since the start, if any, unless it `is_over`. Blocks.

    The embedded broker keeps nothing.
    """
    clock = SystemClock()
    try:
        with TopicReader(kafka, clock, name="up-corpus") as reader:
            if not any(reader.bounds(at)[1] for at in reader.partitions(DOCUMENTS.name)):
                return
        console.print("saving the documents of this run (Ctrl-C again: they are lost)")
        while not is_over() and (waiting := corpus_state(kafka, clock)["waiting"]):
            console.print(f"{sum(waiting.values())} documents are not indexed yet", style="dim")
            time.sleep(LOOK_S)
        base = save_base(kafka, client, clock, console.print, is_over)
        if base is not None:
            console.print(f"saved: {base.rows:,} passages, the next `carpool up` begins with them")
    except CarpoolError as error:
        console.print(f"the documents of this run were not saved: {error}", style="red")
