"""Which base is opened: the newest that was announced and is on this machine."""

from __future__ import annotations

from pathlib import Path

from carpool.clock import Clock
from carpool.corpus.bases import Bases
from carpool.disk.manifest import MANIFEST_NAME, Manifest, is_newer, read_manifest
from carpool.kafka.settings import KafkaSettings
from carpool.kafka.topic_reader import read_topic
from schemas.document import Base
from schemas.topics import BASES

BASES_FOLDER = "bases"
"""The folder of saved bases, in that of the index."""


def bases_dir(index_dir: Path) -> Path:
    """Returns the folder of saved bases: beside an index that is a saved base itself."""
    parent = index_dir.resolve().parent
    return parent if parent.name == BASES_FOLDER else index_dir / BASES_FOLDER


def newest_dir(index_dir: Path) -> Path:
    """Returns the folder of the newest centroids: of the index, or of a base that has new ones."""
    newest, version = index_dir, read_manifest(index_dir).index_version
    for manifest in sorted(bases_dir(index_dir).glob(f"*/{MANIFEST_NAME}")):
        found = read_manifest(manifest.parent).index_version
        if is_newer(found, version):
            newest, version = manifest.parent, found
    return newest


def first_base(manifest: Manifest) -> Base:
    """Returns an index as a base that has no document of the log."""
    version = manifest.index_version
    return Base(name=version, index_version=version, folder="", position={}, vectors={})


def is_here(index_dir: Path, base: Base) -> bool:
    """Returns whether the folder of a base is on this machine, whole."""
    return (bases_dir(index_dir) / base.folder / MANIFEST_NAME).is_file()


def base_to_open(index_dir: Path, kafka: KafkaSettings, clock: Clock) -> Base | None:
    """Returns the newest base that is here; None: the index itself. Blocks.

    A newer index than that of the bases was built after them: they do not count. Raises
    `ConfigError`, and `RetryableError` without brokers.
    """
    bases = Bases()
    for message in read_topic(kafka, clock, BASES.name, name="bases"):
        bases.hear(message)
    version = read_manifest(index_dir).index_version
    for base in reversed(bases.kept):
        if is_here(index_dir, base) and not is_newer(version, base.index_version):
            return base
    return None
