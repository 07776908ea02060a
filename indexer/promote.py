"""Makes an index the newest: it gets a new version, and its files stay as they are."""

from __future__ import annotations

from pathlib import Path

import msgspec

from carpool.clock import Clock
from carpool.disk.manifest import read_manifest, write_manifest
from indexer.write import index_version


def promote(index_dir: Path, clock: Clock) -> str:
    """Gives the index at `index_dir` the version of a build that began now, and returns it.

    Services that have the index open keep the earlier version until they are restarted. Raises
    `ConfigError` where there is no index, `CorruptionError` where its manifest is damaged.
    """
    manifest = read_manifest(index_dir)
    version = index_version(
        clock.now_us(), manifest.files, manifest.embedding_model, manifest.centroids_fingerprint
    )
    write_manifest(index_dir, msgspec.structs.replace(manifest, index_version=version))
    return version
