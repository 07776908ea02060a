"""The commands of `carpool bench`. Light to import: each command imports its work when it runs."""

from __future__ import annotations

import msgspec
import typer

from bench.core.command import command_of
from bench.data.options import GrowOptions
from bench.papers.cli import paper
from bench.reliability.options import ChaosOptions, TornOptions
from bench.search.options import SearchOptions
from bench.services.options import (
    AnswersOptions,
    ClaimsOptions,
    OverheadOptions,
    PrioritiesOptions,
    TrafficOptions,
)

app = typer.Typer(
    name="bench",
    no_args_is_help=True,
    add_completion=False,
    rich_markup_mode=None,
    context_settings={"help_option_names": ["-h", "--help"]},
    help="""Does it pay? Figures on evaluation data, as tables and as JSON.

claims, answers and traffic start the services as processes and an embedded broker, publish
questions, and read every answer. priorities, overhead, chaos and torn do the same on Apache Kafka
that they start from KAFKA_HOME. The others need no broker: search runs contestants
in processes, paper runs plans. The JSON of each run names its machine, versions, data and settings.

\b
Is the right thing found?      carpool bench claims --data DATA
Is the answer right?           carpool bench answers --data DATA
Which order saves tokens?      carpool bench paper ragcache orders --data DATA
How fast, how many bytes?      carpool bench traffic --data DATA
Against others?                carpool bench search --collection DIR
How many bytes on the GPU?     carpool bench paper vectorlite bytes --index DIR --questions FILE
What are warm-ups worth?       carpool bench paper aquapipe speculation --data DATA
Does batch work delay others?  carpool bench priorities
A figure of a paper, here?     carpool bench paper cagr hits --index DIR
More vectors than there are?   carpool bench data --out DIR
What does exactly-once cost?   carpool bench overhead
Is anything lost or repeated?  carpool bench chaos, torn
""",
)

COMMANDS: dict[str, tuple[type[msgspec.Struct], str]] = {
    "answers": (AnswersOptions, "bench.answers.run"),
    "claims": (ClaimsOptions, "bench.services.claims"),
    "traffic": (TrafficOptions, "bench.services.traffic"),
    "priorities": (PrioritiesOptions, "bench.services.priorities"),
    "overhead": (OverheadOptions, "bench.services.overhead"),
    "data": (GrowOptions, "bench.data.grown"),
    "chaos": (ChaosOptions, "bench.reliability.chaos.command"),
    "torn": (TornOptions, "bench.reliability.torn"),
    "search": (SearchOptions, "bench.search.run"),
}
"""The options of each command, and the module whose `run` takes them."""

for name, (options, module) in COMMANDS.items():
    app.command(name=name)(command_of(options, module))
app.add_typer(paper, name="paper")
