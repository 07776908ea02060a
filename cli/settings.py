"""All sections of the settings: how commands read them, and where each value came from."""

from __future__ import annotations

import tomllib
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, TypeVar

import msgspec
from msgspec import Meta

from carpool.disk.settings import IndexSettings
from carpool.embedding.settings import EmbeddingSettings
from carpool.errors import ConfigError
from carpool.kafka.settings import KafkaSettings
from carpool.settings import (
    SECTIONS,
    Settings,
    describe,
    environment_name,
    load_settings,
    section_kinds,
)
from carpool.telemetry.settings import HttpSettings, LogSettings
from carpool.vllm import VllmSettings
from carpool.workflow.settings import WorkflowSettings
from cli.runfile import RunFile
from gateway.settings import GatewaySettings
from generator.settings import GeneratorSettings, LlmSettings
from grouper.settings import GrouperSettings
from indexer.settings import IndexerConfig, IndexerSettings
from producers.settings import ClientSections, ClientSettings
from searcher.settings import SearcherSettings

T = TypeVar("T", bound=msgspec.Struct)


class UpSettings(Settings, frozen=True, kw_only=True):
    """Ports and time limits of `carpool up`. A default port in use is replaced by a free one."""

    state_dir: Annotated[
        str,
        Meta(
            min_length=1,
            description="Folder for the logs of what is started, and its addresses (run.json).",
        ),
    ] = ".carpool/run"
    broker_port: Annotated[
        int, Meta(ge=0, le=65_535, description="Port of the embedded broker; 0: a free one.")
    ] = 9092
    http_port: Annotated[
        int,
        Meta(
            ge=0,
            le=65_532,
            description="Port of the HTTP pages of the grouper; searcher, generator and indexer "
            "have the next ones. 0: free ones.",
        ),
    ] = 9101
    ready_timeout_s: Annotated[
        float,
        Meta(
            gt=0,
            le=3_600,
            description="How long each part may take to be ready, s; vLLM after the last line of "
            "its log. Low: slow machines give up; high: hangs last.",
        ),
    ] = 300.0


class CarpoolSettings(msgspec.Struct, frozen=True, kw_only=True):
    """Every section. A process uses the ones that concern it; all are checked."""

    kafka: KafkaSettings
    http: HttpSettings
    log: LogSettings
    client: ClientSettings
    index: IndexSettings
    embedding: EmbeddingSettings
    indexer: IndexerSettings
    grouper: GrouperSettings
    searcher: SearcherSettings
    generator: GeneratorSettings
    llm: LlmSettings
    vllm: VllmSettings
    workflow: WorkflowSettings
    gateway: GatewaySettings
    up: UpSettings


class BuildSettings(IndexerConfig, frozen=True, kw_only=True):
    """The sections of a build, and that of the prompts which show its passages."""

    generator: GeneratorSettings


class ClientSide(ClientSections, frozen=True, kw_only=True):
    """The sections of commands that talk to running services. They need the base install only."""

    up: UpSettings


class BatchSide(ClientSide, frozen=True, kw_only=True):
    """The same, with the sections that say how much a question can cost."""

    generator: GeneratorSettings
    workflow: WorkflowSettings


class GatewaySide(ClientSide, frozen=True, kw_only=True):
    """The same, with the sections of the gateway."""

    http: HttpSettings
    log: LogSettings
    workflow: WorkflowSettings
    gateway: GatewaySettings


@dataclass(frozen=True, kw_only=True)
class Given:
    """The sources of settings: a TOML file, the environment, flags by section and name; the last
    wins.
    """

    file: Path | None
    environ: Mapping[str, str]
    flags: Mapping[str, Mapping[str, Any]]

    def origin(self, section: str, name: str) -> str:
        """Returns where the value comes from: default, a file, the environment or a flag."""
        variable = environment_name(section, name)
        if name in self.flags.get(section, {}):
            return "flag"
        if variable in self.environ:
            return f"environment ({variable})"
        if self.file is not None:
            table = tomllib.loads(self.file.read_text(encoding="utf-8")).get(section, {})
            if name in table:
                return f"file ({self.file})"
        return "default"

    def is_default(self, section: str, name: str) -> bool:
        """Returns whether no file, variable or flag has a value of the setting."""
        return self.origin(section, name) == "default"


def parse_assignments(assignments: list[str]) -> dict[str, dict[str, str]]:
    """Returns `section.name=value` flags by section and name. Raises `ConfigError` on any other
    shape.
    """
    parsed: dict[str, dict[str, str]] = {}
    for assignment in assignments:
        path, equals, value = assignment.partition("=")
        section, dot, name = path.strip().partition(".")
        if not equals or not dot:
            raise ConfigError(
                f"--set {assignment!r}: write section.name=value, such as --set "
                "searcher.scoring_threads=8"
            )
        if section not in SECTIONS:
            raise ConfigError(
                f"--set {assignment!r}: there is no section {section!r}; there are: "
                f"{', '.join(SECTIONS)}"
            )
        parsed.setdefault(section, {})[name] = value
    return parsed


def load(kind: type[T], given: Given) -> T:
    """Returns the settings in force of `kind`; other sections are ignored.

    Raises `ConfigError` that lists every problem.
    """
    kinds = section_kinds(kind)
    flags = {section: values for section, values in given.flags.items() if section in kinds}
    for section, values in flags.items():
        _check_flags(section, kinds[section], values)
    return load_settings(kind, file=given.file, environ=given.environ, flags=flags)


def _check_flags(section: str, kind: type[Settings], values: Mapping[str, Any]) -> None:
    docs = {doc.name: doc for doc in describe(section, kind)}
    for name in values:
        if name not in docs:
            raise ConfigError(
                f"--set {section}.{name}: [{section}] has no {name!r}; it has: {', '.join(docs)}"
            )
        if docs[name].is_secret:
            raise ConfigError(
                f"--set {section}.{name}: a secret is read from {docs[name].environment} only"
            )


S = TypeVar("S", bound=ClientSide)


def load_client_side(given: Given, kind: type[S]) -> S:
    """Returns the settings of a command that talks to running services, of `kind`.

    Without brokers in the settings, brokers and prefix are those of a running `carpool up`.
    """
    settings = load(kind, given)
    run = RunFile(Path(settings.up.state_dir)).read()
    if run is None or not given.is_default("kafka", "bootstrap"):
        return settings
    prefix = run.prefix if given.is_default("kafka", "prefix") else settings.kafka.prefix
    kafka = msgspec.structs.replace(settings.kafka, bootstrap=run.bootstrap, prefix=prefix)
    return msgspec.structs.replace(settings, kafka=kafka)
