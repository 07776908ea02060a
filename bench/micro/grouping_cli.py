"""The options of `carpool bench grouping`."""

from __future__ import annotations

from typing import Annotated, Literal

import typer

from bench.core.options import DataOption, JsonOption


def grouping(
    data: DataOption = None,
    nlist: Annotated[
        int, typer.Option("--nlist", min=1, help="Clusters, trained on the passages.")
    ] = 1000,
    nprobe: Annotated[
        int, typer.Option("--nprobe", min=1, help="Clusters a question probes.")
    ] = 32,
    window: Annotated[
        int, typer.Option("--window", min=1, max=1000, help="Questions a window.")
    ] = 100,
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
        Literal["arrival", "nearest_chain"] | None,
        typer.Option(
            "--order", help="The order that is timed. Default: the grouper's.", show_default=False
        ),
    ] = None,
    cache_share: Annotated[
        float,
        typer.Option(
            "--cache-share",
            min=0.0,
            max=1.0,
            help="Share of the clusters that the replay's cache holds.",
        ),
    ] = 0.4,
    seed: Annotated[
        int, typer.Option("--seed", min=0, help="Of the clusters and of who meets whom.")
    ] = 0,
    json_file: JsonOption = None,
) -> None:
    """What does planning a window cost, and what is its order worth?

    Times grouping and ordering of windows of real questions on one thread, as the grouper does it.
    Then replays all questions in every policy and order on paper: what a searcher that goes query
    by query, and one that goes record by record, would read with a cache of a share of the
    clusters. docs/grouping.md says what the columns mean.

    Ends with 1 when more than one window in a hundred takes over 2 ms.

    Example:  carpool bench grouping --data DATA --json grouping.json
    """
    from bench.micro import grouping as bench

    default_policy, default_order, theta = bench.defaults()
    options = bench.GroupingOptions(
        nlist=nlist,
        nprobe=min(nprobe, nlist),
        window_queries=window,
        windows=windows,
        policy=policy or default_policy,
        order=order or default_order,
        jaccard_similarity_min=theta,
        cache_share=cache_share,
        seed=seed,
    )
    if not bench.run(data, options, json_file):
        raise typer.Exit(1)
