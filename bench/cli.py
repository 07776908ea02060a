"""The options of `carpool bench`. Light to import: the work is in `bench.services.commands` and
`bench.retrieval`.
"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Literal

import typer

from bench.core.options import DataOption, JsonOption, ServiceSettingOption, WorkOption
from bench.data.grown.cli import data as grow_data
from bench.micro.grouping_cli import grouping
from bench.papers.cagr.cli import figure
from bench.reliability.chaos.cli import chaos
from bench.reliability.priorities_cli import priorities
from bench.reliability.rebalance.cli import rebalance
from bench.retrieval.cli import search
from bench.services.overhead.cli import overhead
from bench.simulator.cli import policies, simulator

app = typer.Typer(
    name="bench",
    no_args_is_help=True,
    rich_markup_mode=None,
    help="""Does it pay? Figures on evaluation data, as tables and as JSON.

claims, traffic and priorities start the services as processes, on an embedded broker or on yours,
publish questions, and read every answer. overhead, chaos and rebalance do the same on an Apache
Kafka that they start from KAFKA_HOME. The others need no broker: search and figure run contestants
in processes, simulator runs parts of the searcher, policies and grouping replay cluster
ids. The JSON of each run names its machine, versions, data and settings.

\b
Is the right thing found?      carpool bench claims --data DATA
How fast, how many bytes?      carpool bench traffic --data DATA
Against others, in memory?     carpool bench search --index DIR
What is a cache policy worth?  carpool bench policies --data DATA
Does the simulator agree?      carpool bench simulator --data DATA
What is grouping worth?        carpool bench grouping --data DATA
Does batch work delay others?  carpool bench priorities
CaGR-RAG's figures, here?      carpool bench figure 6 --index DIR
More vectors than there are?   carpool bench data --out DIR
What does exactly-once cost?   carpool bench overhead
Is anything lost or repeated?  carpool bench chaos
How long is a rebalance?       carpool bench rebalance
""",
)

BootstrapOption = Annotated[
    str | None,
    typer.Option(
        "--bootstrap",
        metavar="HOST:PORT",
        help="Brokers to use; no other services of Carpool may run on them. Default: an embedded "
        "broker for the run.",
        show_default=False,
    ),
]
IndexOption = Annotated[
    Path | None,
    typer.Option(
        "--index",
        metavar="DIR",
        help="The index: used if it is there, else built there from the precomputed vectors. "
        "Default: under --work.",
        show_default=False,
    ),
]
NlistOption = Annotated[int, typer.Option("--nlist", min=1, help="Clusters of the index.")]
ModelOption = Annotated[
    str | None,
    typer.Option(
        "--model",
        help="Embedding model, a name or a folder: the one that made the vectors of the data. "
        "Default: the services'.",
        show_default=False,
    ),
]
LimitOption = Annotated[
    int | None,
    typer.Option("--limit", min=1, help="Only the first of the questions.", show_default=False),
]
SeedOption = Annotated[
    int, typer.Option("--seed", help="Seed of the clusters and of the arrivals.")
]
WORK = Path(".carpool/bench")


@app.command()
def claims(
    data: DataOption = None,
    bootstrap: BootstrapOption = None,
    index: IndexOption = None,
    work: WorkOption = WORK,
    nlist: NlistOption = 100,
    model: ModelOption = None,
    limit: LimitOption = None,
    kind: Annotated[
        Literal["text", "vectors"],
        typer.Option(
            "--as",
            help="text: the grouper embeds the claims; vectors: precomputed ones are published.",
        ),
    ] = "text",
    nprobe: Annotated[
        int | None,
        typer.Option(
            "--nprobe", min=1, help="Clusters to probe. Default: the index's.", show_default=False
        ),
    ] = None,
    rate: Annotated[
        float, typer.Option("--rate", min=0.1, help="Claims published a second.")
    ] = 100.0,
    generate: Annotated[
        int,
        typer.Option(
            "--generate", min=0, metavar="N", help="The first N claims are also answered by an LLM."
        ),
    ] = 0,
    llm_url: Annotated[
        str,
        typer.Option(
            "--llm-url",
            metavar="URL",
            help="API of the LLM server, http://HOST:PORT/v1; or stand-in: no model, to try this "
            "command out.",
        ),
    ] = "",
    llm_model: Annotated[
        str, typer.Option("--llm-model", help="Name of the model there.", show_default=False)
    ] = "",
    settings: ServiceSettingOption = None,
    seed: SeedOption = 0,
    json_file: JsonOption = None,
) -> None:
    """Is what an exact search finds found, and is it evidence?

    Publishes FEVER's claims and compares each retrieval with FAISS IVF-Flat in memory: same
    vectors, same centroids, same nprobe, and the query vectors that the grouper used. Counts how
    often an evidence page is among the first five, beside exact search and other nprobes.

    Ends with 1 when a promise is broken: a claim lost or retrieved twice, other ids where scores
    differ by 0.00001 or more, evidence over one point below exact search, a claim for the LLM
    without an answer.

    Example:  carpool bench claims --data DATA --generate 50 --llm-url http://127.0.0.1:8000/v1
    --json claims.json
    """
    from bench.services import commands

    common = commands.Common(
        data=data,
        bootstrap=bootstrap,
        index=index,
        work=work,
        nlist=nlist,
        model=model,
        settings=tuple(settings or ()),
        seed=seed,
        limit=limit,
        json_file=json_file,
    )
    options = commands.ClaimsOptions(
        kind=kind,
        nprobe=nprobe,
        rate_per_s=rate,
        generate=generate,
        llm_url=llm_url,
        llm_model=llm_model,
    )
    if not commands.claims(common, options):
        raise typer.Exit(1)


@app.command()
def traffic(
    data: DataOption = None,
    bootstrap: BootstrapOption = None,
    index: IndexOption = None,
    work: WorkOption = WORK,
    nlist: NlistOption = 100,
    model: ModelOption = None,
    limit: LimitOption = None,
    text_rate: Annotated[
        float,
        typer.Option(
            "--text-rate", min=0, help="Questions a second as text; 0 leaves this run out."
        ),
    ] = 50.0,
    vector_rate: Annotated[
        float,
        typer.Option(
            "--vector-rate", min=0, help="Questions a second as vectors; 0 leaves this run out."
        ),
    ] = 200.0,
    arrivals: Annotated[
        Literal["poisson", "even"],
        typer.Option("--arrivals", help="poisson: as from many askers; even: as by a clock."),
    ] = "poisson",
    warm_up: Annotated[
        int,
        typer.Option(
            "--warm-up",
            min=0,
            help="Questions asked first and not measured: a first batch is slow.",
        ),
    ] = 20,
    budget_share: Annotated[
        float,
        typer.Option(
            "--budget-share",
            min=0.001,
            max=10,
            help="What the searcher may hold, as a share of all clusters' bytes.",
        ),
    ] = 0.4,
    footprint: Annotated[
        bool,
        typer.Option(
            help="Measure what the searcher takes by itself: the same traffic on an index with "
            "next to nothing."
        ),
    ] = True,
    settings: ServiceSettingOption = None,
    seed: SeedOption = 0,
    json_file: JsonOption = None,
) -> None:
    """How fast, and with how many bytes from disk, is a stream of questions searched?

    Publishes HotpotQA's questions twice: as text, which the grouper embeds, then as vectors. The
    load is open: a question is due at its time whether or not earlier ones are back, and its total
    counts from then until its retrieval is read. Reports p50 and p99 of every stage over all
    questions, clusters by the tier where they were found, bytes read a query, sizes of windows, and
    memory.

    The searcher may hold only a share of the index (--budget-share), so that its cache has work to
    do.

    Ends with 1 when a promise is broken: a question lost or retrieved twice, records and metrics
    that disagree on the cache, memory over its bounds.

    Example:  carpool bench traffic --data DATA --text-rate 0 --vector-rate 500 --set
    grouper.policy=per_query
    """
    from bench.services import commands

    common = commands.Common(
        data=data,
        bootstrap=bootstrap,
        index=index,
        work=work,
        nlist=nlist,
        model=model,
        settings=tuple(settings or ()),
        seed=seed,
        limit=limit,
        json_file=json_file,
    )
    options = commands.TrafficOptions(
        text_rate_per_s=text_rate,
        vector_rate_per_s=vector_rate,
        arrivals=arrivals,
        warm_up=warm_up,
        budget_share=budget_share,
        footprint=footprint,
    )
    if not commands.traffic(common, options):
        raise typer.Exit(1)


app.command()(search)
app.command()(policies)
app.command()(simulator)
app.command()(grouping)
app.command()(priorities)
app.command()(figure)
app.command()(overhead)
app.command()(chaos)
app.command()(rebalance)
app.command(name="data")(grow_data)
