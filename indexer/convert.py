"""Converts an index of format v1 to the format of today: same clusters, same documents."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator
from pathlib import Path

import msgspec
import numpy as np
import numpy.typing as npt

from carpool.clock import Clock
from carpool.codes.faiss_codes import Encoder
from carpool.disk.documents import DOCUMENTS_NAME, OFFSETS_NAME
from carpool.disk.extents import plan_extents
from carpool.disk.files import damage, file_crc32, fsync_folder
from carpool.disk.index import OpenIndex, open_index
from carpool.disk.manifest import FORMAT, MANIFEST_NAME, Manifest, write_manifest
from carpool.disk.pages import ClusterRows, choose_layout, dense
from carpool.disk.segments import SegmentWriter, build_id_of, read_cluster
from carpool.errors import ConfigError
from indexer.progress import ProgressReport
from indexer.sequential import drop_cached
from indexer.settings import IndexerSettings
from indexer.write import Plan, code_layouts, index_version, rotation_of, write_tables


def convert_index(
    source: Path, out: Path, settings: IndexerSettings, clock: Clock, progress: ProgressReport
) -> Manifest:
    """Writes the index at `source`, of format v1, to `out` in the format of today. Blocks.

    Every cluster is verified. Memory: one cluster, and 12 bytes a row. A conversion that was killed
    continues, and `out` is an index only when it is complete. Raises `ConfigError` where there is
    nothing to convert or `out` has an index, `CorruptionError` where `source` is damaged.
    """
    started_us = clock.now_us()
    index = open_index(source)
    try:
        _check(index, out)
        out.mkdir(parents=True, exist_ok=True)
        return _convert(index, out, settings, started_us, progress)
    finally:
        index.close()


def _check(index: OpenIndex, out: Path) -> None:
    if index.manifest.format == FORMAT:
        raise ConfigError(
            f"the index at {index.dir} has format {FORMAT} already: there is nothing to convert"
        )
    if (out / MANIFEST_NAME).exists():
        raise ConfigError(
            f"there is an index at {out} already; it stays as it is. Give another --out"
        )


def _convert(
    index: OpenIndex,
    out: Path,
    settings: IndexerSettings,
    started_us: int,
    progress: ProgressReport,
) -> Manifest:
    manifest = index.manifest
    plan = _plan(index, settings)
    rotation = rotation_of(manifest.dimension)
    writer = SegmentWriter(
        out,
        layout=plan.layout,
        build_id=plan.build_id,
        extents=plan.extents,
        encoders=[Encoder(code, index.centroids, rotation) for code in plan.codes],
    )
    done = writer.next_cluster
    order: list[npt.NDArray[np.int64]] = []
    progress.start("converting clusters (rows)", manifest.row_count)
    try:
        for cluster in _clusters(index):
            order.append(cluster.rows)
            if cluster.cluster >= done:
                writer.append(cluster.cluster, cluster.vectors, cluster.rows)
            progress.advance(len(cluster.rows))
    except BaseException:
        writer.abandon()
        raise
    segments = writer.close()
    for name in (DOCUMENTS_NAME, OFFSETS_NAME):
        _copy(index, out, name, progress)
    files = write_tables(out, index.centroids, plan, np.concatenate(order), segments)
    converted = msgspec.structs.replace(
        manifest,
        format=FORMAT,
        index_version=index_version(
            started_us, files, manifest.embedding_model, manifest.centroids_fingerprint
        ),
        codes=plan.codes,
        page_bytes=plan.layout.page_bytes,
        segment_count=plan.extents[-1].segment + 1,
        build_id=plan.build_id,
        files=files,
    )
    write_manifest(out, converted)
    return converted


def _plan(index: OpenIndex, settings: IndexerSettings) -> Plan:
    manifest = index.manifest
    counts = [extent.row_count for extent in index.extents]
    layout = choose_layout(manifest.dimension, manifest.vector_dtype, counts)
    has_codes = manifest.row_count >= settings.code_rows_min
    codes = code_layouts(settings.codecs if has_codes else (), layout)
    build_id = build_id_of(
        manifest.build_id.to_bytes(8, "little"), msgspec.json.encode((layout, codes))
    )
    extents = plan_extents(layout, counts, segment_bytes_max=settings.segment_bytes_max)
    return Plan(layout=layout, build_id=build_id, extents=extents, codes=codes)


def _clusters(index: OpenIndex) -> Iterator[ClusterRows]:
    """Yields every cluster in order, verified, and leaves nothing in the page cache."""
    for segment, path in enumerate(index.segment_paths):
        with path.open("rb") as file:
            for extent in index.extents:
                if extent.segment == segment:
                    yield dense(
                        read_cluster(
                            file.fileno(),
                            extent,
                            layout=index.layout,
                            build_id=index.manifest.build_id,
                            path=str(path),
                        )
                    )
        drop_cached(path)


def _copy(index: OpenIndex, out: Path, name: str, progress: ProgressReport) -> None:
    """Copies a file of the documents, whose bytes stay the same, and checks it."""
    source, target = index.dir / name, out / name
    progress.note(f"copying {name}")
    shutil.copyfile(source, target)
    with target.open("rb") as file:
        os.fsync(file.fileno())
    fsync_folder(out)
    if file_crc32(target) != index.manifest.file(name).crc32:
        raise damage(source, "is damaged: its checksum is not the manifest's")
    for path in (source, target):
        drop_cached(path)
