"""The options of `carpool bench answers`. Light to import."""

from __future__ import annotations

from typing import Annotated

import typer

from bench.services.options import CorpusOptions


class AnswersOptions(CorpusOptions, frozen=True, kw_only=True):
    """Are the answers right, and what do they cost?

    Asks 100 questions whose answers are known through grouper, searcher and generator, with a vLLM
    that the run starts. Counts where a gold answer is: in the answer, in the answer or its quote.
    Counts the share of output tokens that are not the text. Shares come with Wilson's 95 %
    intervals.

    Ends with 1 when a promise is broken: a question without one terminal answer, less than 0.75
    with gold in answer or quote, more than 15 % of tokens beyond the text.

    Example:  carpool bench answers --json answers.json
    """

    llm: Annotated[
        str | None,
        typer.Option(
            "--llm",
            metavar="DIR",
            help="Folder of the model that vLLM serves. Default: vllm.model_dir.",
            show_default=False,
        ),
    ] = None
