"""All sections of the settings together."""

from __future__ import annotations

import msgspec

from carpool.disk.settings import IndexSettings
from carpool.embedding.settings import EmbeddingSettings
from carpool.kafka.settings import KafkaSettings
from carpool.telemetry.settings import HttpSettings, LogSettings
from carpool.vllm import VllmSettings
from carpool.workflow.settings import WorkflowSettings
from cli.up_settings import UpSettings
from generator.settings import GeneratorSettings, LlmSettings
from grouper.settings import GrouperSettings
from indexer.settings import IndexerConfig, IndexerSettings
from producers.settings import ClientSettings
from searcher.settings import SearcherSettings


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
    up: UpSettings


class BuildSettings(IndexerConfig, frozen=True, kw_only=True):
    """The sections of a build, and that of the prompts which show its passages."""

    generator: GeneratorSettings
