"""`carpool workflows`: list the programs, explain one; check those of a file, and run one."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

import msgspec
import typer
from rich.text import Text

from carpool.errors import ConfigError, RecordError
from carpool.workflow.graph import program_of
from carpool.workflow.program import Program, Programs, find
from cli.console import output, people, print_json, print_plain, quiet_logs, table
from cli.exit_codes import FAILED
from cli.options import Config, JsonOption, spread
from cli.settings import CarpoolSettings, load
from producers.build_query import build_record
from schemas.codec import decode
from schemas.query import Query
from schemas.workflow import InlineWorkflow

app = typer.Typer(name="workflows", rich_markup_mode=None)

QUESTION = "Which made-up question is asked?"
FileArgument = Annotated[
    Path, typer.Argument(help="A .py module of programs, or a graph or a query as .json.")
]


@app.callback(invoke_without_command=True)
@spread
def workflows(context: typer.Context, as_json: JsonOption = False, *, sources: Config) -> None:
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
    programs = _programs(sources).values()
    if as_json:
        print_json([_facts(program) for program in programs])
        return
    rows = table("name", "version", "steps", "summary", right=("version", "steps"), whole=("name",))
    for program in programs:
        numbers = (str(program.version), str(program.steps_max))
        rows.add_row(program.name, *numbers, program.summary)
    output().print(rows)


@app.command()
@spread
def show(
    name: Annotated[
        str, typer.Argument(help="A name of `carpool workflows`; name@version for an old one.")
    ],
    as_json: JsonOption = False,
    *,
    sources: Config,
) -> None:
    """Explain a program: what it does, its file, how many steps it may take, and its source.

    \b
    Examples:
      carpool workflows show hyde
      carpool workflows show hyde@1 --json
    """
    programs = _programs(sources)
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
@spread
def check(
    file: FileArgument,
    question: Annotated[str, typer.Option(help="What is asked.")] = QUESTION,
    texts: Annotated[
        list[str] | None,
        typer.Option(
            "--text",
            metavar="TEXT",
            help="What the model writes in the first step that asks it, the second, and so on; "
            "later ones get made-up texts.",
        ),
    ] = None,
    as_json: JsonOption = False,
    *,
    sources: Config,
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
    from cli.workflow_check import dry_run

    programs = _of_file(file, question)
    settings = load(CarpoolSettings, sources.given())
    checked = [dry_run(each, question, texts or (), settings) for each in programs]
    if as_json:
        print_json(checked)
    else:
        for each in checked:
            output().print(each.program, style="bold")
            for number, step in enumerate(each.steps, start=1):
                output().print(f"{number:>3}  {step}", soft_wrap=True)
            end = (
                Text(f"error: {each.error}", "red") if each.error else f"     answer  {each.answer}"
            )
            output().print(end, soft_wrap=True)
    if any(each.error for each in checked):
        raise typer.Exit(FAILED)


@dataclass(frozen=True, kw_only=True)
class RunOptions:
    """What a program is run on."""

    program: Annotated[
        str | None,
        typer.Option("--program", metavar="NAME", help="Which program, of a file with several."),
    ] = None
    index: Annotated[str | None, typer.Option(metavar="DIR", help="Folder of the index.")] = None
    model: Annotated[
        str | None,
        typer.Option(metavar="NAME|DIR", help="Embedding model. Default: that of the index."),
    ] = None
    llm_url: Annotated[
        str | None, typer.Option(metavar="URL", help="The LLM server. Default: llm.base_url.")
    ] = None
    llm_model: Annotated[
        str | None, typer.Option(metavar="NAME", help="The model to ask for. Default: llm.model.")
    ] = None
    first: Annotated[
        int,
        typer.Option(
            "--from", min=1, metavar="N", help="Take the steps before step N from --saved."
        ),
    ] = 1
    saved: Annotated[
        Path | None,
        typer.Option(metavar="FILE", help="A run that --json printed, or an answer as JSON."),
    ] = None


@app.command()
@spread
def run(
    file: FileArgument,
    question: Annotated[str, typer.Argument(help="The question, in quotes.")],
    on: RunOptions,
    as_json: JsonOption = False,
    *,
    sources: Config,
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
    from cli.workflow_run import WorkflowRunner, read_saved
    from searcher.local import LocalSearcher

    if (on.first > 1) != (on.saved is not None):
        raise ConfigError("--from N and --saved FILE go together: the saved run has the steps")
    quiet_logs()
    chosen = sources.given(
        index={"dir": on.index},
        embedding={"model": on.model},
        llm={"base_url": on.llm_url, "model": on.llm_model},
    )
    settings, program = load(CarpoolSettings, chosen), _chosen(file, question, on.program)
    steps = () if on.saved is None else read_saved(on.saved)
    with LocalSearcher(
        settings.index.dir,
        embedding=None if chosen.is_default("embedding", "model") else settings.embedding,
        settings=msgspec.structs.replace(settings.searcher, direct_io="auto"),
    ) as searcher:
        console = people() if as_json else output()
        runner = WorkflowRunner(program, settings, searcher, console, first=on.first, saved=steps)
        ran = asyncio.run(runner.run(Query(query_id="run", text=question, workflow=program.name)))
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


def _programs(sources: Config) -> Programs:
    from carpool.workflow.load import load_programs

    return load_programs(load(CarpoolSettings, sources.given()).workflow.modules)


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
