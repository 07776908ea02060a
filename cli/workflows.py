"""`carpool workflows`: list the programs, explain one; check those of a file, and run one."""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import msgspec
import typer
from rich.text import Text

from carpool.errors import ConfigError, RecordError
from carpool.workflow.graph import program_of
from carpool.workflow.program import Program, find
from carpool.workflow.settings import WorkflowSettings
from carpool.workflow.steps import AnswerStep, Found, Generate, Retrieve, Said, Step, WorkflowError
from cli.answers import quoted
from cli.console import output, people, print_json, print_plain, table
from cli.exit_codes import FAILED
from cli.options import ConfigOption, JsonOption, SetOption, given
from cli.settings import load
from generator.settings import GeneratorSettings
from producers.build_query import build_record
from schemas.codec import decode
from schemas.hit import Hit
from schemas.query import Query
from schemas.record import ClusterId
from schemas.workflow import InlineWorkflow

app = typer.Typer(name="workflows", rich_markup_mode=None)

QUESTION = "Which made-up question is asked?"
HITS = 3


class WorkflowSections(msgspec.Struct, frozen=True, kw_only=True):
    """The sections with modules of programs, their limits, and their prompts."""

    workflow: WorkflowSettings
    generator: GeneratorSettings


class Checked(msgspec.Struct, frozen=True, kw_only=True):
    """A dry run of a program. `error`: why it did not reach its answer."""

    program: str
    steps: tuple[str, ...]
    answer: str | None
    error: str | None


@app.callback(invoke_without_command=True)
def workflows(
    context: typer.Context,
    config: ConfigOption = None,
    assignments: SetOption = None,
    as_json: JsonOption = False,
) -> None:
    """List workflows: the programs that `carpool ask --workflow NAME` can name.

    A program searches and asks the model several times for one answer. There are built-in ones,
    and those of the modules that `workflow.modules` names. A question gets the newest version.
    These commands read the settings alone: the services may have others.

    \b
    Examples:
      carpool workflows
      carpool workflows --set workflow.modules=my_workflows.py
      carpool workflows show multistep
      carpool workflows check my_workflows.py
      carpool workflows run my_workflows.py --index .carpool/index "Who wrote Hamlet?"
    """
    if context.invoked_subcommand is not None:
        return
    programs = _programs(config, assignments).values()
    if as_json:
        print_json([_facts(program) for program in programs])
        return
    rows = table("name", "version", "steps", "summary", right=("version", "steps"), whole=("name",))
    for program in programs:
        numbers = (str(program.version), str(program.steps_max))
        rows.add_row(program.name, *numbers, program.summary)
    output().print(rows)


@app.command()
def show(
    name: str = typer.Argument(help="A name of `carpool workflows`; name@version for an old one."),
    config: ConfigOption = None,
    assignments: SetOption = None,
    as_json: JsonOption = False,
) -> None:
    """Explain a program: what it does, its file, how many steps it may take, and its source.

    \b
    Examples:
      carpool workflows show hyde
      carpool workflows show hyde@1 --json
    """
    programs = _programs(config, assignments)
    bare, _, version = name.partition("@")
    program = find(programs, bare, int(version) if version.isdecimal() else None)
    if program is None:
        known = ", ".join(each.label for each in programs.values())
        raise ConfigError(f"there is no workflow {name!r}; there are: {known} (workflow.modules)")
    facts = _facts(program)
    if as_json:
        print_json(facts)
        return
    for label in ("explanation", "steps_max", "file"):
        if facts[label]:
            output().print(Text(f"{label:<12}", "bold"), facts[label], soft_wrap=True)
    if facts["source"]:
        print_plain(f"\n{facts['source'].rstrip()}")


@app.command()
def check(
    file: Path = typer.Argument(help="A .py module of programs, or a graph or a query as .json."),
    question: str = typer.Option(QUESTION, "--question", help="What is asked."),
    texts: list[str] | None = typer.Option(
        None,
        "--text",
        metavar="TEXT",
        help="What the model writes in the first step that asks it, the second, and so on; later "
        "ones get made-up texts.",
    ),
    config: ConfigOption = None,
    assignments: SetOption = None,
    as_json: JsonOption = False,
) -> None:
    """Run each program of a file with made-up results, and print the steps that it asks for.

    Each search finds other passages, as long as a prompt shows them; a line names those that its
    prompt does not show. Finds what services would refuse: imports that a program may not use,
    steps that are not valid, prompts that cannot be filled, endless loops, and programs that ask
    for other steps in another process: each runs in two, with other orders of sets. Give --text to
    see another path. Needs no broker and no model. Exit code 1: a program does not reach its
    answer; the output says why. Exit code 2: the file cannot be used.

    \b
    Examples:
      carpool workflows check my_workflows.py
      carpool workflows check my_workflows.py --text yes --text "In which city was she born?"
      carpool workflows check graph.json --json
    """
    programs = _of_file(file, question)
    settings = load(WorkflowSections, given(config, assignments))
    checked = [_dry_run(each, question, texts or (), settings) for each in programs]
    if as_json:
        print_json(checked)
    else:
        for each in checked:
            output().print(each.program, style="bold")
            for number, step in enumerate(each.steps, start=1):
                output().print(f"{number:>3}  {step}", soft_wrap=True)
            output().print(
                Text(f"error: {each.error}", "red")
                if each.error
                else f"     answer  {each.answer}",
                soft_wrap=True,
            )
    if any(each.error for each in checked):
        raise typer.Exit(FAILED)


@app.command()
def run(
    file: Path = typer.Argument(help="A .py module of programs, or a graph or a query as .json."),
    question: str = typer.Argument(help="The question, in quotes."),
    program: str | None = typer.Option(
        None, "--program", metavar="NAME", help="Which program, of a file with several."
    ),
    index: str | None = typer.Option(None, "--index", metavar="DIR", help="Folder of the index."),
    model: str | None = typer.Option(
        None, "--model", metavar="NAME|DIR", help="Embedding model. Default: that of the index."
    ),
    llm_url: str | None = typer.Option(
        None, "--llm-url", metavar="URL", help="The LLM server. Default: llm.base_url."
    ),
    llm_model: str | None = typer.Option(
        None, "--llm-model", metavar="NAME", help="The model to ask for. Default: llm.model."
    ),
    first: int = typer.Option(
        1, "--from", min=1, metavar="N", help="Take the steps before step N from --saved."
    ),
    saved: Path | None = typer.Option(
        None, "--saved", metavar="FILE", help="A run that --json printed, or an answer as JSON."
    ),
    config: ConfigOption = None,
    assignments: SetOption = None,
    as_json: JsonOption = False,
) -> None:
    """Run a program on a real index and a real model, without Kafka, and show what each step does.

    Each prompt is printed as the model gets it, then the text as it is written; passages that a
    prompt does not show are named. Steps side by side run one after the other. After a change of
    the program, --from N goes on from step N: the steps before it are those of a saved run, and are
    not paid again. The program must still ask for them. Of an answer (`carpool ask --json`) the
    texts are taken, and its searches run again. With --json the run is one document on standard
    output, and is shown on standard error. Exit code 1: a step fails; the output says which and
    why. Exit code 2: the file, the index or the saved run cannot be used.

    \b
    Examples:
      carpool workflows run compare.py "Is Emma older than Hamlet?" --index .carpool/index
      carpool workflows run compare.py "..." --llm-url http://127.0.0.1:8000/v1 --json > run.json
      carpool workflows run compare.py "..." --from 3 --saved run.json
    """
    from cli.all_settings import CarpoolSettings
    from cli.dlq.commands import quiet_logs
    from cli.workflow_run import WorkflowRunner, read_saved
    from searcher.local import LocalSearcher

    if (first > 1) != (saved is not None):
        raise ConfigError("--from N and --saved FILE go together: the saved run has the steps")
    quiet_logs()
    sources = given(
        config,
        assignments,
        index={"dir": index},
        embedding={"model": model},
        llm={"base_url": llm_url, "model": llm_model},
    )
    settings, chosen = load(CarpoolSettings, sources), _chosen(file, question, program)
    steps = () if saved is None else read_saved(saved)
    with LocalSearcher(
        settings.index.dir,
        embedding=None if sources.is_default("embedding", "model") else settings.embedding,
        settings=msgspec.structs.replace(settings.searcher, direct_io="auto"),
    ) as searcher:
        console = people() if as_json else output()
        runner = WorkflowRunner(chosen, settings, searcher, console, first=first, saved=steps)
        query = Query(query_id="run", text=question, workflow=chosen.name)
        ran = asyncio.run(runner.run(query))
    if as_json:
        print_json(ran)


def _chosen(file: Path, question: str, name: str | None) -> Program:
    """Returns the program of this name, or the only one of a file. Raises `ConfigError`."""
    found = {(each.name, each.version): each for each in _of_file(file, question)}
    names = {each.name for each in found.values()}
    program = find(found, name or min(names)) if name or len(names) == 1 else None
    if program is None:
        known = ", ".join(each.label for each in found.values())
        raise ConfigError(f"{file} has the programs {known}; name one with --program")
    return program


def workflow_of(named: str | None) -> str | Mapping[str, Any] | None:
    """Returns the name of a program as it is, or the graph of a .json file.

    The file may be a query, too. Raises `ConfigError`.
    """
    if named is None or Path(named).suffix != ".json":
        return named
    try:
        graph = msgspec.json.decode(Path(named).read_bytes())
    except (OSError, msgspec.DecodeError) as error:
        raise ConfigError(f"the graph {named} cannot be read: {error}") from None
    if not isinstance(graph, dict):
        raise ConfigError(f"{named} is no graph: it needs an object with `nodes` and `edges`")
    whole = graph.get("workflow")  # of a whole query
    return whole if isinstance(whole, dict) else graph


def _of_file(file: Path, question: str) -> list[Program]:
    """Returns the programs of a file. Raises `ConfigError`."""
    from carpool.workflow.process import TwoProcesses

    if file.suffix == ".json":
        try:
            record = build_record(question, now_us=0, workflow=workflow_of(str(file)))
        except RecordError as error:
            raise ConfigError(f"{file}: {error}") from None
        inline = decode(Query, record.value, record.headers).workflow
        assert isinstance(inline, InlineWorkflow), "a file has a graph"
        return [program_of(inline.graph)]
    if not file.is_file() or file.suffix != ".py":
        raise ConfigError(f"{file} is no file that ends in .py or .json")
    return list(TwoProcesses(str(file)).start())


def _programs(
    config: Path | None, assignments: list[str] | None
) -> Mapping[tuple[str, int], Program]:
    from carpool.workflow.load import load_programs

    return load_programs(load(WorkflowSections, given(config, assignments)).workflow.modules)


def _facts(program: Program) -> dict[str, Any]:
    return {
        "name": program.name,
        "version": program.version,
        "steps_max": program.steps_max,
        "summary": program.summary,
        "explanation": f"{program.label}: {program.doc}",
        "file": program.file,
        "source": program.source,
    }


def _dry_run(
    program: Program, question: str, texts: Iterable[str], settings: WorkflowSections
) -> Checked:
    from carpool.testing.workflow import run
    from generator.prompts import fill_step, load_templates

    prompts, templates = settings.generator, load_templates(settings.generator)
    said = itertools.chain(texts, (f"made-up text {number}" for number in itertools.count(1)))
    steps: list[str] = []
    searches: list[Found] = []
    numbers = itertools.count(1)

    def result(step: Step) -> Found | Said:
        if isinstance(step, Retrieve):
            some = itertools.islice(numbers, step.top_k or HITS)
            searches.append(Found([made_up(one, prompts.passage_chars_max) for one in some]))
            ids = ", ".join(hit.doc_id for hit in searches[-1])
            steps.append(f"search  {quoted(step.text)} -> {ids}")
            return searches[-1]
        text = Said(next(said))
        steps.append(f"write   {_prompt(step)} -> {quoted(text.text)}")
        steps[-1] += left_out(fill_step(step, prompts, templates, searches).left_out)
        return text

    answer, wrong = None, None
    try:
        end = run(program, result, question=question, limits=settings.workflow).answer
        answer = _prompt(end)
        if not end.is_written:
            answer += left_out(fill_step(end, prompts, templates, searches).left_out)
    except WorkflowError as error:
        wrong = str(error)
    except RecordError as error:
        where = f"step {len(steps)}" if answer is None else "its answer"
        wrong = f"{program.label}, {where}: {error}"
    return Checked(program=program.label, steps=tuple(steps), answer=answer, error=wrong)


def made_up(number: int, chars: int) -> Hit:
    """Returns a passage of so many characters."""
    text = f"The text of made-up passage {number}. "
    return Hit(
        doc_id=f"doc-{number}",
        score=1 / number,
        cluster=ClusterId(0),
        title=f"Title {number}",
        text=(text * chars)[:chars],
    )


def left_out(hits: Iterable[Hit]) -> str:
    """Returns which passages a prompt does not show, as the end of a line."""
    ids = ", ".join(hit.doc_id for hit in hits)
    return f"; not in the prompt: {ids}" if ids else ""


def _prompt(step: Generate) -> str:
    """Returns what a prompt is made of, in words."""
    if isinstance(step, AnswerStep) and step.is_written:
        return f"the text {quoted(str(step.values['text']))}, {len(step.passages)} passages"
    of = f"template {step.template}" if step.prompt is None else quoted(step.prompt)
    return f"{of} with {', '.join(step.values) or 'no values'}"
