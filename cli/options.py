"""Options that several commands share."""

from __future__ import annotations

import os
import re
from collections.abc import Callable
from dataclasses import MISSING, dataclass, fields, is_dataclass
from inspect import Parameter, Signature, signature
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, get_type_hints

import typer

from carpool.clock import SystemClock
from carpool.errors import ConfigError
from carpool.kafka.settings import KafkaSettings
from carpool.settings import CONFIG_VARIABLE, settings_file
from cli.console import step_progress
from cli.settings import ClientSide, Given, load_client_side, parse_assignments
from producers.read_questions import read_questions
from schemas.topics import TOPICS

# NumPy is imported by the commands that need it: the base install has none.
if TYPE_CHECKING:
    from carpool.disk.manifest import Manifest
    from carpool.embedding import EmbeddingSettings

PLACE = re.compile(r"(?:([A-Za-z0-9._-]{1,249})/)?([0-9]{1,9})/([0-9]{1,18})")
CONTEXT = {"help_option_names": ["-h", "--help"], "max_content_width": 120}
"""Of every group of commands."""

JsonOption = Annotated[bool, typer.Option("--json", help="Print JSON for programs.")]


def command_group(name: str, help: str, **options: Any) -> typer.Typer:
    """Returns an application of commands that prints its help where it gets none."""
    plain = {"no_args_is_help": True, "rich_markup_mode": None, "context_settings": CONTEXT}
    return typer.Typer(name=name, help=help, **(plain | options))


def logical_topic(kafka: KafkaSettings, topic: str) -> str:
    """Returns the name of a topic without the prefix; one of ours may be given with the prefix."""
    ours = {each.name for each in TOPICS}
    bare = kafka.logical_topic(topic)
    return bare if topic not in ours and bare in ours else topic


def parse_place(text: str, example: str, default: str = "") -> tuple[str, int, int]:
    """Returns topic, partition and offset of a record. Raises `ConfigError` with the `example`.

    `default`: the topic that may be left out; empty: none.
    """
    found = PLACE.fullmatch(text)
    if found is None or not (found[1] or default):
        form = "[TOPIC/]PARTITION/OFFSET" if default else "TOPIC/PARTITION/OFFSET"
        raise ConfigError(f"{text!r} is no place: write {form}, such as {example}")
    return found[1] or default, int(found[2]), int(found[3])


@dataclass(frozen=True, kw_only=True)
class Config:
    """The options that say where the settings of a command come from."""

    config: Annotated[
        Path | None,
        typer.Option("--config", "-c", help=f"Settings file (TOML); also {CONFIG_VARIABLE}."),
    ] = None
    assignments: Annotated[
        list[str] | None,
        typer.Option(
            "--set",
            "-s",
            metavar="SECTION.NAME=VALUE",
            help="One setting; wins over file and environment.",
        ),
    ] = None

    def given(self, **flags: dict[str, Any]) -> Given:
        """Returns the sources; `flags` are the other options of the command, by section.

        Raises `ConfigError` when an assignment has another shape, or names no setting.
        """
        found: dict[str, dict[str, Any]] = {**parse_assignments(self.assignments or [])}
        for section, values in flags.items():
            own = {name: value for name, value in values.items() if value is not None}
            found[section] = found.get(section, {}) | own
        return Given(file=settings_file(self.config, os.environ), environ=os.environ, flags=found)

    def passed_on(self) -> list[str]:
        """Returns these options as arguments for the processes that the command starts."""
        file = [] if self.config is None else ["--config", str(self.config)]
        return file + [part for each in self.assignments or () for part in ("--set", each)]


_BOOTSTRAP = ("--bootstrap", "-b")


@dataclass(frozen=True, kw_only=True)
class Sources(Config):
    """The same, with the brokers."""

    bootstrap: Annotated[
        str | None,
        typer.Option(*_BOOTSTRAP, metavar="HOST:PORT", help="Brokers. Default: kafka.bootstrap."),
    ] = None

    def given(self, **flags: dict[str, Any]) -> Given:
        kafka = {"bootstrap": self.bootstrap} | flags.pop("kafka", {})
        return super().given(kafka=kafka, **flags)


@dataclass(frozen=True, kw_only=True)
class ClientArgs(Sources):
    """The options of a command that talks to running services."""

    bootstrap: Annotated[
        str | None,
        typer.Option(
            *_BOOTSTRAP,
            metavar="HOST:PORT",
            help="Brokers. Default: those of a running `carpool up`, else kafka.bootstrap.",
        ),
    ] = None

    def settings(self, **kafka: Any) -> ClientSide:
        """Returns the settings in force; `kafka`: more settings of that section."""
        return load_client_side(self.given(kafka=kafka), ClientSide)


@dataclass(frozen=True, kw_only=True)
class Asked:
    """Real questions: those of a file, or those that Kafka still has."""

    questions: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE",
            help="Questions: vectors (.npy), or one a line, as text or, in a .jsonl file, as JSON "
            "with `text`. Default: those that Kafka still has.",
        ),
    ] = None
    last: Annotated[
        int, typer.Option(min=100, metavar="N", help="Take the last N questions at most.")
    ] = 5000

    def vectors(self, manifest: Manifest, embedding: EmbeddingSettings, sources: ClientArgs) -> Any:
        """Returns them: (n, dim) float32, normalised. Blocks to read and embed them."""
        from indexer.questions import questions_of_log, questions_of_texts, questions_of_vectors

        if self.questions is None:
            kafka, clock = sources.settings().kafka, SystemClock()
            return questions_of_log(kafka, manifest, embedding, self.last, clock, step_progress())
        if self.questions.suffix == ".npy":
            return questions_of_vectors(self.questions)[-self.last :]
        texts = [question.text or "" for question in read_questions(self.questions)]
        return questions_of_texts(texts[-self.last :], manifest, embedding)


def spread(command: Callable[..., None]) -> Callable[..., None]:
    """Lets a command take dataclasses of options: each field becomes an option of the command."""
    hints = get_type_hints(command, include_extras=True)
    shown: list[Parameter] = []
    groups: dict[str, Any] = {}
    for name, own in signature(command).parameters.items():
        if is_dataclass(kind := hints[name]):
            groups[name] = kind
            of_kind = get_type_hints(kind, include_extras=True)
            shown += [
                own.replace(
                    name=each.name,
                    default=Parameter.empty if each.default is MISSING else each.default,
                    annotation=of_kind[each.name],
                )
                for each in fields(kind)
            ]
        else:
            shown.append(own.replace(annotation=hints[name]))

    def run(**values: Any) -> None:
        for name, kind in groups.items():
            values[name] = kind(**{each.name: values.pop(each.name) for each in fields(kind)})
        command(**values)

    run.__name__, run.__doc__ = command.__name__, command.__doc__
    run.__annotations__ = {each.name: each.annotation for each in shown}
    run.__signature__ = Signature(  # type: ignore[attr-defined]
        [each.replace(kind=Parameter.KEYWORD_ONLY) for each in shown]
    )
    return run
