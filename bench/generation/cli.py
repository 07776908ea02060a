"""The options of `carpool bench answers`. Light to import."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from bench.core.command import command
from bench.services.cli import CorpusOptions


class AnswersOptions(CorpusOptions, frozen=True, kw_only=True):
    """Options of answers."""

    llm_url: Annotated[
        str | None,
        typer.Option(
            "--llm-url",
            metavar="URL",
            help="An LLM server that runs already. Default: a vLLM that the run starts.",
            show_default=False,
        ),
    ] = None
    llm_model: Annotated[
        str | None,
        typer.Option(
            "--llm-model",
            metavar="NAME",
            help="With --llm-url: the model to ask for. Default: the first that it lists.",
            show_default=False,
        ),
    ] = None
    llm: Annotated[
        str | None,
        typer.Option(
            "--llm",
            metavar="DIR",
            help="Folder of the model that vLLM serves. Default: vllm.model_dir.",
            show_default=False,
        ),
    ] = None
    label: Annotated[
        str | None,
        typer.Option(
            "--label",
            help="What the table calls this run. Default: the commit.",
            show_default=False,
        ),
    ] = None
    beside: Annotated[
        Path | None,
        typer.Option(
            "--beside",
            metavar="FILE",
            help="The JSON of an earlier run: shown in the same table, and what this run is "
            "compared with.",
            show_default=False,
        ),
    ] = None


@command
def answers(options: AnswersOptions) -> bool:
    """Are the answers right, and are they worth their tokens?

    Asks 100 questions whose answers are known through grouper, searcher and generator, with a real
    LLM server. Counts where a gold answer is: in the answer, in the answer or its quote, in the
    passages of the prompt. Counts answers that repeat four words three times, and the share of
    output tokens that are not the text. Shares come with Wilson's 95 % intervals.

    Ends with 1 when a promise is broken: a question without one terminal answer, less than 0.75
    with gold in answer or quote, more than 5 % repeats, more than 15 % of tokens beyond the text,
    or less than 0.15 more gold in the answer than in --beside.

    Example:  carpool bench answers --json now.json --beside before.json
    """
    from bench.generation.answers import run

    return run(options)
