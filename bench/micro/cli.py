"""The options of `carpool bench grouping` and `carpool bench policies`."""

from __future__ import annotations

from typing import Annotated, Literal

import typer

from bench.core.options import (
    DataOption,
    JsonOption,
    NlistOption,
    NprobeOption,
    SeedOption,
    WindowOption,
    shares_of,
)


def grouping(
    data: DataOption = None,
    nlist: NlistOption = 1000,
    nprobe: NprobeOption = 32,
    window: WindowOption = 100,
    windows: Annotated[
        int, typer.Option("--windows", min=1, help="Windows that are timed.")
    ] = 1000,
    policy: Annotated[
        Literal["per_window", "greedy", "agglomerative", "per_query"] | None,
        typer.Option(
            "--policy", help="The policy that is timed. Default: the grouper's.", show_default=False
        ),
    ] = None,
    order: Annotated[
        Literal["nearest_chain", "arrival"] | None,
        typer.Option(
            "--order", help="The order that is timed. Default: the grouper's.", show_default=False
        ),
    ] = None,
    cache_share: Annotated[
        float,
        typer.Option(
            "--cache-share", min=0.0, max=1.0, help="Share of the clusters in the replay's cache."
        ),
    ] = 0.4,
    seed: SeedOption = 0,
    json_file: JsonOption = None,
) -> None:
    """What does planning a window cost, and what is its order worth?

    Times grouping and ordering of windows of real questions on one thread, as the grouper does it.
    Then replays all questions in every policy and order: what a searcher that goes query by query,
    and one that goes record by record, would read with a cache of a share of the clusters.
    docs/grouping.md says what the columns mean.

    Ends with 1 when more than one window in a hundred takes over 2 ms.

    Example:  carpool bench grouping --data DATA --json grouping.json
    """
    from bench.micro import grouping as bench
    from grouper.settings import GrouperSettings

    settings = GrouperSettings()
    options = bench.GroupingOptions(
        nlist=nlist,
        nprobe=min(nprobe, nlist),
        window_queries=window,
        windows=windows,
        policy=policy or settings.policy,
        order=order or settings.order,
        jaccard_similarity_min=settings.jaccard_similarity_min,
        cache_share=cache_share,
        seed=seed,
    )
    if not bench.run(data, options, json_file):
        raise typer.Exit(1)


def policies(
    data: DataOption = None,
    nlist: NlistOption = 1000,
    nprobe: NprobeOption = 10,
    window: WindowOption = 20,
    budgets: Annotated[
        str, typer.Option("--budgets", help="Shares of all clusters' bytes, with commas.")
    ] = "0.1,0.2",
    seeds: Annotated[
        int, typer.Option("--seeds", min=1, help="Clusterings and orders of the questions.")
    ] = 3,
    json_file: JsonOption = None,
) -> None:
    """What is each cache policy worth, and what does knowing the next windows add?

    Replays real questions over clusters of real passages, on cluster ids: nothing is read. Bytes of
    each way of caching over those of the static oracle: the best fixed set of clusters, chosen
    with all questions known, each read once.

    Example:  carpool bench policies --data DATA --json policies.json
    """
    from bench.micro import policies as bench

    shares = shares_of("--budgets", budgets)
    options = bench.PoliciesOptions(
        nlist=nlist, nprobe=nprobe, window=window, budget_shares=shares, seeds=seeds
    )
    bench.run(data, options, json_file)
