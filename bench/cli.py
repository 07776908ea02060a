"""The commands of `carpool bench`. Light to import: each command imports its work when it runs."""

from __future__ import annotations

import msgspec
import typer

from bench.core.options import command_of
from bench.data.options import GrowOptions
from bench.gateway.options import AgentsOptions, LatencyOptions
from bench.live import options as of_live
from bench.papers import options as papers
from bench.reliability.options import BatchesOptions, ChaosOptions, TornOptions
from bench.search.options import SearchOptions
from bench.services import options as services

app = typer.Typer(
    name="bench",
    no_args_is_help=True,
    add_completion=False,
    rich_markup_mode=None,
    context_settings={"help_option_names": ["-h", "--help"]},
    help="""Does it pay? Figures on evaluation data, as tables and as JSON.

claims, answers and backlog start the services as processes and an embedded broker, publish
questions, and read every answer. priorities, overhead, batches, chaos, torn and gateway do the same
on Apache Kafka that they start from KAFKA_HOME. The others need no broker. The JSON of each run
names its machine, versions, data and settings.
""",
)
paper = typer.Typer(
    name="paper",
    no_args_is_help=True,
    help="A figure of a paper: what it states, its algorithm run again, ours, and an oracle.",
)
live = typer.Typer(
    name="live",
    no_args_is_help=True,
    help="A corpus that changes while it is searched: one part for each promise.",
)
gateway = typer.Typer(
    name="gateway",
    no_args_is_help=True,
    help="What the gateway adds to a question, and agents that search by it.",
)

COMMANDS: dict[str, tuple[type[msgspec.Struct], str]] = {
    "answers": (services.AnswersOptions, "bench.answers.run"),
    "backlog": (services.BacklogOptions, "bench.services.backlog"),
    "claims": (services.ClaimsOptions, "bench.services.claims"),
    "priorities": (services.PrioritiesOptions, "bench.services.priorities"),
    "overhead": (services.OverheadOptions, "bench.services.overhead"),
    "data": (GrowOptions, "bench.data.grown"),
    "batches": (BatchesOptions, "bench.reliability.batches"),
    "chaos": (ChaosOptions, "bench.reliability.chaos.command"),
    "torn": (TornOptions, "bench.reliability.torn"),
    "search": (SearchOptions, "bench.search.run"),
}
PAPERS: dict[str, tuple[type[msgspec.Struct], str]] = {
    "cagr": (papers.CagrOptions, "bench.papers.cagr.figures"),
    "vectorlite": (papers.VectorLiteOptions, "bench.papers.vectorlite.figures"),
    "hedrarag": (papers.HedraRagOptions, "bench.papers.hedrarag.figures"),
    "ragcache": (papers.RagCacheOptions, "bench.papers.ragcache.figures"),
    "aquapipe": (papers.SpeculationOptions, "bench.papers.aquapipe.speculation"),
    "hedrarag-nearness": (papers.NearnessOptions, "bench.papers.hedrarag.nearness"),
}
LIVE: dict[str, tuple[type[msgspec.Struct], str]] = {
    "frozen": (of_live.FrozenOptions, "bench.live.frozen"),
    "restart": (of_live.RestartOptions, "bench.live.restart"),
    "stream": (of_live.StreamOptions, "bench.live.stream"),
    "swaps": (of_live.SwapsOptions, "bench.live.freshness"),
    "freshness": (of_live.FreshnessOptions, "bench.live.freshness"),
}
GATEWAY: dict[str, tuple[type[msgspec.Struct], str]] = {
    "latency": (LatencyOptions, "bench.gateway.latency"),
    "agents": (AgentsOptions, "bench.gateway.agents"),
}
"""The options of each command, and the module whose `run` takes them."""

GROUPS = ((app, COMMANDS), (paper, PAPERS), (live, LIVE), (gateway, GATEWAY))

for group, commands in GROUPS:
    for name, (options, module) in commands.items():
        group.command(name=name)(command_of(options, module))
app.add_typer(paper)
app.add_typer(live)
app.add_typer(gateway)
