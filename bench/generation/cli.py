"""The options of the benchmarks of generation. Light to import."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Literal

import msgspec
import typer

from bench.core.command import command
from bench.core.options import WORK, DataOption, JsonOption, SeedOption, WorkOption
from bench.services.cli import CorpusOptions

REAL_PARTS = ("real", "real-replicas", "real-kill")
PARTS = ("orders", "tiers", "replicas", *REAL_PARTS)
STREAMS = ("natural", "zipf", "ragpulse")
LlmUrlOption = Annotated[
    str | None,
    typer.Option(
        "--llm-url",
        metavar="URL",
        help="An LLM server that runs already. Default: a vLLM that the run starts.",
        show_default=False,
    ),
]
LlmModelOption = Annotated[
    str | None,
    typer.Option(
        "--llm-model",
        metavar="NAME",
        help="With --llm-url: the model to ask for. Default: the first that it lists.",
        show_default=False,
    ),
]
LlmFolderOption = Annotated[
    str | None,
    typer.Option(
        "--llm",
        metavar="DIR",
        help="Folder of the model that vLLM serves. Default: vllm.model_dir.",
        show_default=False,
    ),
]


class LlmServerOptions(CorpusOptions, frozen=True, kw_only=True):
    """The LLM server of a run."""

    llm_url: LlmUrlOption = None
    llm_model: LlmModelOption = None
    llm: LlmFolderOption = None


class AnswersOptions(LlmServerOptions, frozen=True, kw_only=True):
    """Options of answers."""

    label: Annotated[
        str | None,
        typer.Option(
            "--label",
            help="Name of this run in the table. Default: the commit.",
            show_default=False,
        ),
    ] = None
    beside: Annotated[
        Path | None,
        typer.Option(
            "--beside",
            metavar="FILE",
            help="The JSON of an earlier run, which the table shows, and with which this run is "
            "compared.",
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


class GenerationOptions(msgspec.Struct, frozen=True, kw_only=True):
    """Options of generation."""

    data: DataOption = None
    parts: Annotated[
        str,
        typer.Option(
            "--parts",
            metavar="NAME,NAME",
            help="What to run: orders, tiers and replicas are simulated; real starts a vLLM, and "
            "real-replicas two; real-kill starts two and kills one.",
        ),
    ] = "orders,tiers,replicas"
    streams: Annotated[
        str,
        typer.Option(
            "--streams",
            metavar="NAME,NAME",
            help="Streams of prompts: the questions as they come (natural), drawn by Zipf 1.0 "
            "(zipf), in the shape of RAGPulse's trace (ragpulse).",
        ),
    ] = "natural,zipf,ragpulse"
    llm: Annotated[
        str | None,
        typer.Option(
            "--llm",
            metavar="DIR",
            help="Folder of a chat model, whose tokenizer makes the prompts and which vLLM serves. "
            "Default: vllm.model_dir.",
            show_default=False,
        ),
    ] = None
    passages: Annotated[
        int, typer.Option("--passages", min=1, max=4, help="Passages of a prompt.")
    ] = 3
    layers: Annotated[
        int | None,
        typer.Option(
            "--layers",
            min=1,
            help="With a vLLM: so many layers of the model, with random weights. What is cached "
            "depends on token ids only, and the runs take minutes instead of an hour.",
            show_default=False,
        ),
    ] = None
    seed: Annotated[int, typer.Option("--seed", min=0, help="Seed of the streams.")] = 0
    work: WorkOption = WORK
    json_file: JsonOption = None

    def __post_init__(self) -> None:
        """Raises `BadParameter` for unknown names."""
        for option, text, known in (
            ("--parts", self.parts, PARTS),
            ("--streams", self.streams, STREAMS),
        ):
            if unknown := set(text.split(",")) - set(known):
                raise typer.BadParameter(
                    f"{option} {text}: {', '.join(sorted(unknown))} is none of {', '.join(known)}"
                )


@command
def generation(options: GenerationOptions) -> bool:
    """How many prompt tokens does an order save, and is the simulation right?

    Sends streams of real prompts through the generator's queue to a simulated vLLM, which evicts
    blocks by LRU: in the order of arrival, in the generator's orders, in orders that do not know
    the cache (sorted by shared passages, ContextPilot), and as if no block were computed twice (the
    oracle: memory without end, all prompts known). Simulates RAGCache's tree of passages on GPU and
    host with LRU, LFU, GDSF, PGDSF and an oracle, and the generator's dispatcher with four servers,
    one of which is killed. With --parts real it sends the same prompts to a real vLLM and compares
    the cached tokens; with real-replicas to two, each prompt to the server that it is simulated on.
    With real-kill the generator's stage sends the prompts of zipf to two, and one of them is killed
    with SIGKILL and started again.

    A backlog is the number of prompts that wait. Passages may change places where the loss of score
    allows it. Simulated rows take some minutes, one process for each stream.

    Ends with 1 when a promise is broken: with a backlog of 1,024 and no bound of overtaking 27 % of
    the tokens of the natural stream are cached, and 60 % by Zipf, in prompts of the template
    cited_json; with four servers 54 %, none with over 1.05 of the mean requests; after a kill no
    block is credited that is not there, and all prompts are answered once; and simulated shares are
    within 0.005 of vLLM's, 0.01 with two of them.

    Example:  carpool bench generation --data DATA --json generation.json

    Example:  carpool bench generation --data DATA --parts real --layers 2 --json real.json
    """
    from bench.generation.generation import run

    return run(options)


class SpeculationOptions(msgspec.Struct, frozen=True, kw_only=True):
    """Options of speculation."""

    data: DataOption = None
    source: Annotated[
        Literal["hotpotqa", "nq"],
        typer.Option("--source", help="The set of the questions: HotpotQA or Natural Questions."),
    ] = "hotpotqa"
    questions: Annotated[
        int, typer.Option("--questions", min=20, help="Questions that are searched.")
    ] = 1000
    nlist: Annotated[
        list[int], typer.Option("--nlist", min=1, help="Clusters of the index; may be repeated.")
    ] = msgspec.field(default_factory=lambda: [100, 1000])
    passages: Annotated[int, typer.Option("--passages", min=1, help="Passages of a prompt.")] = 3
    seed: SeedOption = 0
    json_file: JsonOption = None


@command
def speculation(options: SpeculationOptions) -> bool:
    """Which passages of a search that still runs are worth computing, and when?

    Searches real questions cluster by cluster, in several orders of the clusters, and tells every
    policy of speculation what each draft would have had. Searches, warm-ups and prompts then take
    place on virtual time, with an LLM server that works in steps, for one question at once and for
    eight. An oracle knows which of the passages found are final. The times of the server are set:
    those of a model of 135M parameters in vLLM on two cores.

    Ends with 1 when the policy of Carpool, one question at once, hides less than 0.9 of what the
    oracle hides for searches of a second, or 0.7 for half a second, or computes more than a quarter
    of the tokens in vain; or when `auto` warms anything for searches of 6 ms.

    Example:  carpool bench speculation --data DATA --json speculation.json
    """
    from bench.generation.speculation_command import run

    return run(options)
