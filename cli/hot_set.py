"""`carpool index hot-set`: explains which clusters a hot shard holds, and why as many."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from carpool.clock import SystemClock
from carpool.errors import ConfigError
from cli.console import facts, output, people, print_json, table
from cli.options import BootstrapOption, ConfigOption, JsonOption, SetOption, given
from cli.settings import load, load_client_side
from cli.step_progress import step_progress

if TYPE_CHECKING:
    from indexer.progress import ProgressReport
    from searcher.hot_set_report import HotSetReport

_IndexDir = Annotated[Path, typer.Argument(metavar="DIR", help="Folder of the index.")]
_Questions = Annotated[
    Path | None,
    typer.Option(
        metavar="FILE",
        help="Real questions: vectors (.npy), or one a line, as text or as JSON with `text`. "
        "Default: the last groups that Kafka still has, as at the start of a searcher.",
    ),
]
_Last = Annotated[
    int, typer.Option(min=100, metavar="N", help="Take the last N questions of FILE at most.")
]
_Nprobe = Annotated[
    int | None,
    typer.Option(
        min=1, help="Clusters to probe for a question of FILE. Default: that of the index."
    ),
]
_TargetMs = Annotated[
    int | None,
    typer.Option(
        min=0,
        metavar="MS",
        help="Longest time of a search with its wait. Default: searcher.shard_target_ms.",
    ),
]
_QueriesPerS = Annotated[
    int | None,
    typer.Option(
        "--queries-per-s",
        min=0,
        metavar="N",
        help="Queries a second to keep up with. Default: searcher.shard_queries_per_s.",
    ),
]
_BytesMax = Annotated[
    int | None,
    typer.Option(
        min=0,
        metavar="BYTES",
        help="Bytes of the hot set at most; 0: all clusters. Default: searcher.shard_bytes_max.",
    ),
]
_Plot = Annotated[
    Path | None,
    typer.Option(
        metavar="FILE.png",
        help="Draw hit rate against bytes, and search time against hit rate, with the choice.",
    ),
]
_Model = Annotated[
    str | None,
    typer.Option("--model", metavar="NAME|DIR", help="Embedding model, for questions as text."),
]


def hot_set(
    index_dir: _IndexDir,
    questions: _Questions = None,
    last: _Last = 5000,
    nprobe: _Nprobe = None,
    target_ms: _TargetMs = None,
    queries_per_s: _QueriesPerS = None,
    bytes_max: _BytesMax = None,
    plot: _Plot = None,
    model: _Model = None,
    bootstrap: BootstrapOption = None,
    config: ConfigOption = None,
    assignments: SetOption = None,
    as_json: JsonOption = False,
) -> None:
    """Explain which clusters a hot shard would hold, and how many a target needs.

    A few clusters take most probes. A searcher with searcher.shard = "gpu" holds the hottest of
    them on the GPU, so that it scans fewer codes. This command chooses them as a searcher does at
    its start, and changes nothing. It reads which clusters real questions probe, and measures on
    this machine how long codes are scanned: run it where the searcher runs, with no other load.

    \b
    hit rate     share of a question's clusters that are in the hot set; each question is judged by
                 the counts of the others
    least        expected for the question with the fewest hits of a batch
    search       until the last question of a batch is scanned; twice that must be within
                 --target-ms, because a question waits as long for its batch. Reads of rows come
                 on top
    batch        the size of batch that is the best for the targets

    The chosen hot set is the smallest that meets --target-ms and --queries-per-s; without both it
    is as large as --bytes-max. Bytes are those of float16 vectors. The model takes hit rates to be
    2.5 standard errors lower than measured, so with few questions it chooses more bytes.

    Example: carpool index hot-set my-index --target-ms 5 --plot hot-set.png

    Example: carpool index hot-set my-index --questions questions.txt --queries-per-s 500
    """
    from cli.all_settings import CarpoolSettings

    if plot is not None:
        _check_plot()
    shard = {
        "shard_target_ms": target_ms,
        "shard_queries_per_s": queries_per_s,
        "shard_bytes_max": bytes_max,
    }
    wishes = given(
        config,
        assignments,
        embedding={"model": model},
        kafka={"bootstrap": bootstrap},
        searcher=shard,
    )
    settings = load(CarpoolSettings, wishes)
    kafka = None if questions is not None else load_client_side(wishes).kafka
    with step_progress(people()) as progress:
        report = _explain(index_dir, settings, kafka, questions, last, nprobe, progress)
    if plot is not None:
        from cli.hot_set_plot import draw

        draw(report, plot)
    if as_json:
        print_json(report)
    else:
        _print(index_dir, report)


def _check_plot() -> None:
    """Raises `ConfigError` where nothing can be drawn, before anything is measured."""
    import importlib.util

    if importlib.util.find_spec("matplotlib") is None:
        raise ConfigError(
            "--plot needs matplotlib, which is not installed: pip install 'carpool[bench]'"
        )


def _explain(
    index_dir: Path,
    settings: Any,
    kafka: Any,
    questions: Path | None,
    last: int,
    nprobe: int | None,
    progress: ProgressReport,
) -> HotSetReport:
    import numpy as np

    from carpool.disk.centroids import probe
    from carpool.disk.index import open_index
    from indexer.questions import questions_of_file
    from searcher.hot_set_report import hot_set_report
    from searcher.shard.recent_probes import probes_of_log

    clock = SystemClock()
    index = open_index(index_dir)
    try:
        manifest = index.manifest
        if questions is not None:
            vectors = questions_of_file(questions, manifest, settings.embedding, last)
            count = min(nprobe or manifest.nprobe_default, manifest.nlist)
            probes = list(probe(index.centroids, vectors, count).astype(np.int64))
        else:
            progress.note("reading the last groups")
            recent = probes_of_log(kafka, clock)(manifest.index_version)
            vectors = np.array([one.vector for one in recent], np.float32)
            probes = [one.clusters for one in recent]
        return hot_set_report(
            index, settings.searcher, vectors, probes, clock, progress.start, progress.advance
        )
    finally:
        index.close()


def _print(index_dir: Path, report: HotSetReport) -> None:
    times, choice = report.times, report.choice
    console = output()
    console.print(
        facts(
            {
                "questions": f"{report.questions:,}, of {report.nprobe} clusters on average",
                "search times": f"{times.fixed_us:,.0f} us a batch, {times.other_us:,.0f} us a "
                f"question, and {times.scan_us:,.0f} us on one of {times.threads} threads for all "
                f"clusters of a question ({report.codec}, off by {times.error:.0%})",
                "targets": _targets(report),
                "chosen": f"{len(choice.clusters):,} clusters, {choice.size_bytes:,} bytes",
                "why": choice.reason,
            },
            title=str(index_dir),
        )
    )
    columns = ("clusters", "MB", "of all bytes", "hit rate", "least", "batch", "search ms", "meets")
    rows = table(*columns, "", right=columns)
    for point in report.points:
        rows.add_row(
            f"{point.clusters:,}",
            f"{point.size_bytes / 1e6:,.1f}",
            f"{point.share:.1%}",
            f"{point.mean_hit_rate:.3f}",
            f"{point.least_hit_rate:.3f}",
            str(point.batch),
            f"{point.search_us / 1000:.2f}",
            "yes" if point.meets else "no",
            "<- chosen" if point.clusters == len(choice.clusters) else "",
        )
    console.print(rows)


def _targets(report: HotSetReport) -> str:
    targets = []
    if report.target_us:
        targets.append(f"a search with its wait within {report.target_us / 1000:g} ms")
    if report.queries_per_s:
        targets.append(f"{report.queries_per_s:,.0f} queries a second")
    return " and ".join(targets) or "none: as many bytes as are allowed"
