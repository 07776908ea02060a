"""`carpool index`: build an index from a corpus, measure, verify, change or look at one."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Annotated

import typer

from carpool.clock import SystemClock
from carpool.errors import ConfigError
from cli.console import output, people, show_result, step_progress
from cli.exit_codes import FAILED
from cli.hot_set import hot_set
from cli.options import Asked, ClientArgs, Config, JsonOption, command_group, spread
from cli.settings import BuildSettings, load

# FAISS and NumPy are imported by the commands that need them: the base install has neither.

SEED_MAX = 2**31 - 1
"""FAISS takes no larger one."""

app = command_group(
    "index",
    "Build, verify and look at an index: documents, grouped into clusters, on disk.",
    add_completion=False,
)

IndexDir = Annotated[Path, typer.Argument(metavar="DIR", help="Folder of the index.")]
ModelOption = Annotated[
    str | None,
    typer.Option(
        "--model", metavar="NAME|DIR", help="Embedding model: a name, a folder, or hashing:64."
    ),
]


@dataclass(frozen=True, kw_only=True)
class BuildOptions:
    """What to build, from what, and where."""

    out: Annotated[
        Path,
        typer.Option("--out", metavar="DIR", help="Folder of the index; made if it is not there."),
    ]
    corpus: Annotated[
        Path | None,
        typer.Argument(
            metavar="CORPUS",
            help='JSON lines, plain or gzip: {"id", "title", "text", "metadata"} a passage.',
        ),
    ] = None
    empty: Annotated[
        bool,
        typer.Option("--empty", help="Build an index without passages, instead of from CORPUS."),
    ] = False
    model: ModelOption = None
    id_field: Annotated[
        str | None,
        typer.Option(metavar="NAME", help="Field of the id. Default: id, else _id (BEIR)."),
    ] = None
    text_field: Annotated[
        str | None,
        typer.Option(
            metavar="NAME", help="Field of the text. Default: text, else contents (Anserini)."
        ),
    ] = None
    title_field: Annotated[
        str | None, typer.Option(metavar="NAME", help="Field of the title. Default: title.")
    ] = None
    nlist: Annotated[
        int,
        typer.Option(
            min=0,
            help="Clusters; 0: 1 up to 50,000 passages, then one for each 4,096 passages, and "
            "above 500,000 passages 4 times their square root, to one digit (4,000 for a "
            "million).",
        ),
    ] = 0
    vectors: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE.npy",
            help="Precomputed vectors, float16 or float32, normalised, one for each good line: "
            "skips embedding.",
        ),
    ] = None
    fingerprint: Annotated[
        str,
        typer.Option(
            metavar="HEX",
            help="With --vectors: fingerprint of the model that made them; else taken from "
            "--model.",
        ),
    ] = ""
    vector_dtype: Annotated[
        str | None,
        typer.Option(
            metavar="float32|float16",
            help="Number type on disk. float16 halves every read, and may swap results whose "
            "scores differ by under 0.001. Default: indexer.vector_dtype (float32, exact).",
        ),
    ] = None
    strict: Annotated[
        bool,
        typer.Option(
            "--strict", help="Refuse a corpus that has a bad line, instead of skipping it."
        ),
    ] = False
    seed: Annotated[
        int,
        typer.Option(
            min=0,
            max=SEED_MAX,
            help="Seed of the sample and of k-means: the same seed gives the same bytes.",
        ),
    ] = 0
    force: Annotated[
        bool, typer.Option("--force", help="Replace an index at DIR, once the new one is complete.")
    ] = False
    restart: Annotated[
        bool,
        typer.Option(
            "--restart", help="Throw away an interrupted build of another corpus or model."
        ),
    ] = False


@app.command()
@spread
def build(wanted: BuildOptions, as_json: JsonOption = False, *, sources: Config) -> None:
    """Build an index: read, embed, cluster, write, measure.

    After a kill the same command continues: passages, vectors, clusters and finished segments are
    stored in DIR/.build. Bad lines are counted, listed with their number and skipped.

    Memory: indexer.memory_bytes (1 GiB), about 300 MB, and 20 to 100 bytes for each passage. Disk:
    a build that embeds takes twice the size of the vectors (4 * dimension bytes for each passage)
    until it is complete.

    Up to 500,000 passages and without --nlist, a query searches all clusters. Else it searches as
    many as a formula says, until `carpool index tune` has measured how many questions need.

    Clusters that are far too large are split, and the smallest ones are dissolved, so nlist stays
    the same. Clusters without rows are left out.

    With --empty there is no corpus: documents are added later. The index has one cluster, and takes
    its dimension from the model.

    Example: carpool index build corpus.jsonl.gz --out my-index

    Example: carpool index build corpus.jsonl --out my-index --vectors vectors.npy --fingerprint
    0123abcd --nlist 1000 --vector-dtype float16 --set indexer.memory_bytes=2147483648
    """
    flags = {"embedding": {"model": wanted.model}, "indexer": {"vector_dtype": wanted.vector_dtype}}
    settings = load(BuildSettings, sources.given(**flags))
    if wanted.empty or wanted.corpus is None:
        _build_empty(wanted, settings, as_json=as_json)
        return
    from cli.index_shown import print_build
    from indexer.build import BuildRequest, build_index

    fields = {"id": wanted.id_field, "text": wanted.text_field, "title": wanted.title_field}
    request = BuildRequest(
        corpus=wanted.corpus,
        index_dir=wanted.out,
        nlist=wanted.nlist,
        seed=wanted.seed,
        strict=wanted.strict,
        force=wanted.force,
        restart=wanted.restart,
        vectors=wanted.vectors,
        fingerprint=wanted.fingerprint,
        fields={field: name for field, name in fields.items() if name is not None},
        prompt_chars=settings.generator.passage_chars_max,
    )
    report = build_index(request, settings, SystemClock(), step_progress())
    print_build(report, wanted.out, people(), as_json=as_json)


def _build_empty(wanted: BuildOptions, settings: BuildSettings, *, as_json: bool) -> None:
    if not wanted.empty or wanted.corpus is not None:
        raise ConfigError("give either a CORPUS, or --empty for an index without passages")
    if wanted.vectors or wanted.nlist:
        raise ConfigError("--empty has one cluster and no vectors: leave out --nlist and --vectors")
    from cli.index_shown import stats_table
    from indexer.empty import build_empty
    from indexer.stats import index_stats

    build_empty(wanted.out, settings, SystemClock(), force=wanted.force)
    stats = index_stats(wanted.out)
    show_result({"index": stats}, stats_table(wanted.out, stats), as_json=as_json)


@app.command()
def verify(index_dir: IndexDir, as_json: JsonOption = False) -> None:
    """Read all of an index and check every checksum and count. Exit code 1: something is damaged.

    The checksum of each page and document includes its place and its build: a changed byte, a
    swapped or missing part, and a file of another build are found. Reads everything once; needs the
    memory of one cluster.
    """
    from cli.index_shown import verdict
    from indexer.verify import verify_index

    report = verify_index(index_dir, step_progress())
    found = {"ok": not report.problems} | asdict(report)
    show_result(found, verdict(index_dir, report), as_json=as_json)
    if report.problems:
        raise typer.Exit(FAILED)


@app.command()
@spread
def tune(
    index_dir: IndexDir,
    asked: Asked,
    model: ModelOption = None,
    as_json: JsonOption = False,
    *,
    sources: ClientArgs,
) -> None:
    """Measure how many clusters a recall takes, with the questions that were really asked.

    A query may then name a recall_target, the share of the best passages of the whole index that
    should be found; the grouper takes the number of clusters from the table that this command
    stores in the index. One half of the questions chooses the numbers, and the other half tests
    them: the column "recall" is from the second half. Do not use passages as questions: a passage
    finds itself.

    Reads every cluster once, and takes the memory of the codes. Services read the table at their
    next start.

    Example: carpool index tune my-index

    Example: carpool index tune my-index --questions questions.txt
    """
    from carpool.disk.manifest import read_manifest
    from cli.index_shown import recall_table
    from indexer.tune import tune_index

    embedding = load(BuildSettings, sources.given(embedding={"model": model})).embedding
    vectors = asked.vectors(read_manifest(index_dir), embedding, sources)
    tuned = tune_index(index_dir, vectors, step_progress())
    assert tuned.recall is not None
    show_result(tuned.recall, recall_table(index_dir, tuned.recall), as_json=as_json)


app.command("hot-set")(hot_set)


@app.command()
def stats(index_dir: IndexDir, as_json: JsonOption = False) -> None:
    """Show what an index contains: rows, clusters, sizes, model, read times, default nprobe.

    Reads the manifest and the table of clusters, not the clusters. "skew" is the size of the
    cluster of a random passage over the mean size: the cost of uneven clusters.
    """
    from cli.index_shown import stats_table
    from indexer.stats import index_stats

    found = index_stats(index_dir)
    show_result(found, stats_table(index_dir, found), as_json=as_json)


@app.command()
def codes(index_dir: IndexDir) -> None:
    """Make new codes for an index that has none, or those of another version.

    An index of an earlier version also gets its table of documents, which changes of single
    documents need. Reads every cluster once. Clusters, passages and the version of the index stay
    as they are. Stop services with this index first, and start them again afterwards.

    Example: carpool index codes my-index
    """
    from indexer.codes import make_codes

    made = make_codes(index_dir, step_progress())
    size_bytes = sum(e.size_bytes for name, e in made.files.items() if name.startswith("codes-"))
    output().print(f"{index_dir} has codes of {size_bytes:,} bytes now", markup=False)


@app.command()
def promote(index_dir: IndexDir) -> None:
    """Make an index the newest, to go back to it from a newer one.

    Groupers and searchers with an older index wait for those with a newer one. So an index that
    replaces a newer one needs a new version: this command writes it into the manifest. Nothing else
    changes. Then restart groupers and searchers with this index.

    \b
    Example:
      carpool index promote .carpool/index-of-last-week
    """
    from indexer.write import promote

    output().print(f"{index_dir} is now index {promote(index_dir, SystemClock())}", markup=False)
