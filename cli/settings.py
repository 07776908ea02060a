"""All sections of the settings together, and where each value came from."""

from __future__ import annotations

import tomllib
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec

from carpool.disk.settings import IndexSettings
from carpool.embedding.settings import EmbeddingSettings
from carpool.errors import ConfigError
from carpool.kafka.settings import KafkaSettings
from carpool.settings import Settings, describe, load_settings
from carpool.settings.sections import SettingDoc
from carpool.telemetry.settings import HttpSettings, LogSettings
from cli.runfile import RunFile
from cli.up_settings import UpSettings, VllmSettings
from generator.settings import GeneratorSettings, LlmSettings
from grouper.settings import GrouperSettings
from producers.settings import ClientSettings
from searcher.settings import SearcherSettings

CONFIG_VARIABLE = "CARPOOL_CONFIG"


class CarpoolSettings(msgspec.Struct, frozen=True, kw_only=True):
    """Every section. A process uses the ones that concern it; all are checked."""

    kafka: KafkaSettings
    http: HttpSettings
    log: LogSettings
    client: ClientSettings
    index: IndexSettings
    embedding: EmbeddingSettings
    grouper: GrouperSettings
    searcher: SearcherSettings
    generator: GeneratorSettings
    llm: LlmSettings
    vllm: VllmSettings
    up: UpSettings


@dataclass(frozen=True, kw_only=True)
class Given:
    """Where settings come from: a TOML file, the environment, and flags by section and name, the last winning."""

    file: Path | None
    environ: Mapping[str, str]
    flags: Mapping[str, Mapping[str, Any]]

    def origin(self, doc: SettingDoc) -> str:
        """Returns where a setting's value comes from, in words: default, a file, the environment, a flag."""
        if self.flags.get(doc.section, {}).get(doc.name) is not None:
            return "flag"
        if doc.environment in self.environ:
            return f"environment ({doc.environment})"
        if self.file is not None:
            table = tomllib.loads(self.file.read_text(encoding="utf-8")).get(doc.section, {})
            if doc.name in table:
                return f"file ({self.file})"
        return "default"

    def with_flags(self, added: Mapping[str, Mapping[str, Any]]) -> Given:
        """Returns this with more flags, which win over those that are there."""
        flags = {section: dict(values) for section, values in self.flags.items()}
        for section, values in added.items():
            flags.setdefault(section, {}).update(values)
        return Given(file=self.file, environ=self.environ, flags=flags)


def parse_assignments(assignments: list[str]) -> dict[str, dict[str, str]]:
    """Returns `section.name=value` flags by section and name. Raises `ConfigError` on any other shape."""
    kinds = section_kinds()
    parsed: dict[str, dict[str, str]] = {}
    for assignment in assignments:
        path, equals, value = assignment.partition("=")
        section, dot, name = path.strip().partition(".")
        if not equals or not dot:
            raise ConfigError(
                f"--set {assignment!r}: write section.name=value, such as --set searcher.reader_threads=8"
            )
        if section not in kinds:
            raise ConfigError(f"--set {assignment!r}: there is no section {section!r}; there are: {', '.join(kinds)}")
        docs = {doc.name: doc for doc in describe(section, kinds[section])}
        if name not in docs:
            raise ConfigError(f"--set {assignment!r}: [{section}] has no {name!r}; it has: {', '.join(docs)}")
        if docs[name].is_secret:
            raise ConfigError(f"--set {section}.{name}: a secret is read from {docs[name].environment} only")
        parsed.setdefault(section, {})[name] = value
    return parsed


def section_kinds() -> dict[str, type[Settings]]:
    """Returns every section's name and type, in order."""
    return {field.name: field.type for field in msgspec.structs.fields(CarpoolSettings)}


def load(given: Given) -> CarpoolSettings:
    """Returns the effective settings. Raises `ConfigError` that lists all that is wrong."""
    return load_settings(CarpoolSettings, file=given.file, environ=given.environ, flags=given.flags)


def load_beside(given: Given) -> CarpoolSettings:
    """As `load`, for commands that talk to what runs: where nothing says which brokers, those of a running `carpool up`."""
    settings = load(given)
    run = RunFile(Path(settings.up.state_dir)).read()
    doc = next(doc for doc in describe("kafka", KafkaSettings) if doc.name == "bootstrap")
    if run is not None and given.origin(doc) == "default":
        return load(given.with_flags({"kafka": {"bootstrap": run.bootstrap}}))
    return settings
