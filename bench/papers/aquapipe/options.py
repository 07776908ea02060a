"""The options of `carpool bench paper aquapipe` and `hedrarag`. Light to import."""

from __future__ import annotations

from typing import Annotated, Literal

import msgspec
import typer

from bench.core.options import DataOption, JsonOption, SeedOption


class SpeculationOptions(msgspec.Struct, frozen=True, kw_only=True):
    """AquaPipe, HedraRAG 4.3, RAGCache 5.3: which passages are computed while a search runs?

    Searches real questions cluster by cluster, the nearest first, and tells each paper's policy,
    ours and an oracle what each draft would have had. Searches, warm-ups and prompts take place on
    virtual time, with a server that works in steps, for one question at once and for eight. Saved:
    the share of the prompts' tokens that were computed when the search ended. In vain: tokens
    computed for nothing, over the tokens of the prompts.

    Ends with 1 when `likely`, one question at once, saves less than 0.9 of what the oracle saves
    for searches of a second, or 0.7 for half a second, or computes more than a quarter of the
    tokens in vain; or when `auto` warms anything for searches of 6 ms.

    Example:  carpool bench paper aquapipe speculation --data DATA
    """

    figure: Annotated[
        Literal["speculation"], typer.Argument(metavar="speculation", show_default=False)
    ]
    data: DataOption = None
    source: Annotated[
        Literal["hotpotqa", "nq"],
        typer.Option("--source", help="The set of the questions: HotpotQA or Natural Questions."),
    ] = "hotpotqa"
    questions: Annotated[
        int, typer.Option("--questions", min=20, help="Questions that are searched.")
    ] = 400
    nlist: Annotated[
        list[int], typer.Option("--nlist", min=1, help="Clusters of the index; may be repeated.")
    ] = msgspec.field(default_factory=lambda: [100, 1000])
    seed: SeedOption = 0
    json_file: JsonOption = None
