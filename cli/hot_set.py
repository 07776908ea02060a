"""`carpool index hot-set`: how many bytes a hot shard needs, and why."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from carpool.clock import SystemClock
from carpool.errors import ConfigError
from cli.console import facts, show_result
from cli.options import Asked, ClientArgs, JsonOption, spread
from cli.settings import CarpoolSettings, load

if TYPE_CHECKING:
    from carpool.disk.index import OpenIndex
    from searcher.plan.hot_set import HotSet
    from searcher.plan.search_times import SearchTimes
    from searcher.settings import SearcherSettings

    _Found = tuple[SearchTimes, HotSet, int | None, str]

ROUNDS = 8
"""Of measured searches: some seconds."""


@dataclass(frozen=True, kw_only=True)
class Targets:
    """What is fast enough, and how much is probed."""

    nprobe: Annotated[
        int | None, typer.Option(min=1, help="Clusters to probe. Default: that of the index.")
    ] = None
    target_ms: Annotated[
        float, typer.Option(min=0, metavar="MS", help="Longest time of a search with its wait.")
    ] = 0.0
    queries_per_s: Annotated[
        float, typer.Option(min=0, metavar="N", help="Queries to keep up with.")
    ] = 0.0


@spread
def hot_set(
    index_dir: Annotated[Path, typer.Argument(metavar="DIR", help="Folder of the index.")],
    asked: Asked,
    targets: Targets,
    as_json: JsonOption = False,
    *,
    sources: ClientArgs,
) -> None:
    """Choose searcher.shard_bytes: the fewest bytes of a hot shard that meet the targets.

    A few clusters take most probes. A searcher with a hot shard holds the hottest of them on the
    GPU, so that it scans fewer codes. This command finds out which clusters real
    questions probe, and measures on this machine how long codes are scanned: run it where the
    searcher runs, with no other load. Give --target-ms, --queries-per-s, or both, such as what the
    LLM server answers.

    \b
    hit rate     share of a question's clusters that are in the hot set; each question is judged by
                 the counts of the others
    search       until the last question of a batch is scanned; twice that must be within
                 --target-ms, because a question waits as long for its batch. Reads of rows come
                 on top
    batch        the size of batch that is the best for the targets

    The shard stores a number of a vector in one byte. The model takes hit rates to be 2.5 standard
    errors lower than measured, so with few questions it chooses more bytes.

    Example: carpool index hot-set my-index --questions questions.txt --target-ms 5
    """
    from carpool.disk.index import open_index

    if not targets.target_ms and not targets.queries_per_s:
        raise ConfigError("nothing says what is fast enough: give --target-ms or --queries-per-s")
    settings = load(CarpoolSettings, sources.given())
    if settings.searcher.shard != "gpu":
        raise ConfigError(
            "the bytes are those of a GPU: set searcher.shard to gpu for this command"
        )
    index = open_index(index_dir)
    try:
        vectors = asked.vectors(index.manifest, settings.embedding, sources)
        found = _choose(index, settings.searcher, vectors, targets)
    finally:
        index.close()
    _print(index_dir, found, as_json=as_json)


def _choose(index: OpenIndex, settings: SearcherSettings, asked: Any, targets: Targets) -> _Found:
    """Returns the measured times, the chosen hot set, the bytes to set, and why.

    `asked`: (n, dim) float32. No bytes: a shard is not needed, or not enough.
    """
    import numpy as np

    from carpool.disk.centroids import probe
    from searcher.plan.gpu_blocks import block_bytes, blocks_of, gpu_bytes_for
    from searcher.plan.hot_set import choose_hot_set, nested_hot_sets

    manifest = index.manifest
    if not len(asked):
        raise ConfigError("there are no questions to profile: name a file with --questions")
    count = min(targets.nprobe or manifest.nprobe_default, manifest.nlist)
    zero_clusters = np.array(manifest.zero_clusters, np.int64)
    probes = [np.append(each, zero_clusters) for each in probe(index.centroids, asked, count)]
    blocks = np.array([blocks_of(extent.row_count) for extent in index.extents], np.int64)
    sets = nested_hot_sets(
        probes, blocks * block_bytes(dimension=manifest.dimension, stored_bytes=1)
    )
    times = _measure(index, settings, asked, probes)
    target_us, per_s = 1_000 * targets.target_ms, targets.queries_per_s
    chosen = choose_hot_set(sets, times, target_us=target_us, queries_per_s=per_s)
    if not chosen.meets:
        why = "the targets are not met even with the whole index in the shard"
        return times, chosen, None, why
    if not chosen.clusters:
        return times, chosen, None, "the targets are met without a shard"
    bytes_max = gpu_bytes_for(chosen.size_bytes, manifest.cluster_count)
    return times, chosen, bytes_max, "the fewest that meet the targets"


def _measure(
    index: OpenIndex, settings: SearcherSettings, asked: Any, probes: list[Any]
) -> SearchTimes:
    """Returns the times of the codes that a searcher would hold. Blocks for some seconds."""
    from searcher.build import bytes_for_codes
    from searcher.codes.open import choose_codes
    from searcher.measure_times import BatchScans, TimeRounds
    from searcher.plan.search_times import fit_search_times

    chosen = choose_codes(index, bytes_for_codes(index, settings))
    if chosen is None or chosen.paged_bytes is not None:
        raise ConfigError(
            f"the index at {index.dir} has no codes that fit searcher.budget_bytes "
            f"({settings.budget_bytes:,}): times are known only where all codes are in memory. "
            f"Raise the budget, or make codes: carpool index codes {index.dir}"
        )
    scans = BatchScans(index, chosen.codes, settings, SystemClock())
    rounds = TimeRounds(scans, asked, probes)
    for _ in range(ROUNDS):
        rounds.scan()
    return fit_search_times(rounds.samples(), scans.threads)


def _print(index_dir: Path, found: _Found, *, as_json: bool) -> None:
    times, chosen, bytes_max, why = found
    rows = {
        "search times": f"{times.fixed_us:,.0f} us a batch, {times.other_us:,.0f} us a question, "
        f"and {times.scan_us:,.0f} us on one of {times.threads} threads for all clusters of a "
        f"question (off by {times.error:.0%})",
        "chosen": f"{chosen.clusters:,} clusters, {chosen.size_bytes / 1e6:,.1f} MB: {why}",
        "hit rate": f"{chosen.mean_hit_rate:.3f}",
        "search": f"{chosen.search_us / 1000:.2f} ms in batches of {chosen.batch}",
        "searcher.shard_bytes": "-" if bytes_max is None else str(bytes_max),
    }
    named = {"times": asdict(times), "chosen": asdict(chosen), "why": why, "shard_bytes": bytes_max}
    show_result(named, facts(rows, title=str(index_dir)), as_json=as_json)
