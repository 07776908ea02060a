"""The section `kafka` of the settings as a benchmark's own clients read it: what `--set
kafka.NAME=VALUE` says reaches them.
"""

from __future__ import annotations

from collections.abc import Mapping

import msgspec

from carpool.kafka.settings import KafkaSettings
from carpool.settings import load_settings

PREFIX = "CARPOOL_KAFKA_"


class _Sections(msgspec.Struct, frozen=True, kw_only=True):
    kafka: KafkaSettings = KafkaSettings()


def kafka_section(environ: Mapping[str, str], **flags: str) -> KafkaSettings:
    """Returns what the environment variables say; `flags` go before them. Raises `ConfigError` for
    what is wrong in either.
    """
    found = {name: value for name, value in environ.items() if name.startswith(PREFIX)}
    return load_settings(_Sections, file=None, environ=found, flags={"kafka": flags}).kafka
