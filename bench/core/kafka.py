"""Kafka for benchmarks: settings of their own clients, and folders of brokers that they start."""

from __future__ import annotations

import shutil
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

import msgspec

from carpool.kafka.settings import KafkaSettings
from carpool.settings import load_settings
from carpool.testing.kafka import kafka_home

PREFIX = "CARPOOL_KAFKA_"


class _Sections(msgspec.Struct, frozen=True, kw_only=True):
    kafka: KafkaSettings = KafkaSettings()


def kafka_settings(environ: Mapping[str, str], **flags: str) -> KafkaSettings:
    """Returns the section `kafka` that `environ` sets; `flags` override it.

    So `--set kafka.NAME=VALUE` reaches the benchmark's own clients too. Raises `ConfigError`.
    """
    found = {name: value for name, value in environ.items() if name.startswith(PREFIX)}
    return load_settings(_Sections, file=None, environ=found, flags={"kafka": flags}).kafka


@contextmanager
def fresh_folder(folder: Path) -> Iterator[Path]:
    """Yields an empty folder for the data of brokers, and removes it afterwards."""
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    try:
        yield folder
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def kafka_version() -> str:
    """Returns the version in the names of the jars of `KAFKA_HOME`; "unknown" without one."""
    home = kafka_home()
    jars = sorted(home.glob("libs/kafka-server-[0-9]*.jar")) if home is not None else []
    return jars[0].stem.removeprefix("kafka-server-") if jars else "unknown"
