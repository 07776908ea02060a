"""Builds the grouper's stage, and opens what it needs: centroids and the embedding model."""

from __future__ import annotations

import os
import socket
from collections.abc import Callable
from functools import partial
from pathlib import Path

from carpool.clock import Clock
from carpool.corpus.base_folders import newest_dir
from carpool.disk.centroids import CENTROIDS_NAME, centroids_fingerprint, read_centroids
from carpool.disk.manifest import Manifest, read_manifest
from carpool.disk.settings import IndexSettings
from carpool.embedding import EmbeddingSettings
from carpool.embedding.loader import load_question_embedder
from carpool.errors import ConfigError, CorruptionError
from carpool.telemetry.metrics import Metrics
from carpool.workflow.load import load_workflows
from carpool.workflow.settings import WorkflowSettings
from grouper.admission import IndexFacts
from grouper.plan.plan_groups import plan_groups
from grouper.service import GrouperStage
from grouper.settings import GrouperSettings
from grouper.work import WindowWork

NeedsHorizon = Callable[[Path], bool]
"""Whether the searchers of the index in a folder use a horizon. May block."""


def build_stage(
    settings: GrouperSettings,
    index: IndexSettings,
    embedding: EmbeddingSettings,
    metrics: Metrics,
    clock: Clock,
    workflow: WorkflowSettings | None = None,
    *,
    lanes: int = 1,
    needs_horizon: NeedsHorizon = lambda _: True,
) -> GrouperStage:
    """Returns the grouper's stage, which loads index and model on a thread of its own.

    `lanes`: partitions of the groups' topics, among which groups are shared out. `needs_horizon`:
    see `load_work`.

    Raises `ConfigError` for workflows that cannot be loaded.
    """

    def load() -> WindowWork:
        return load_work(
            settings, index, embedding, metrics, clock, lanes=lanes, needs_horizon=needs_horizon
        )

    workflows = load_workflows(workflow or WorkflowSettings())
    return GrouperStage(
        settings=settings, load=load, metrics=metrics, clock=clock, workflows=workflows
    )


def load_work(
    settings: GrouperSettings,
    index: IndexSettings,
    embedding: EmbeddingSettings,
    metrics: Metrics,
    clock: Clock,
    *,
    lanes: int,
    needs_horizon: NeedsHorizon,
) -> WindowWork:
    """Returns the planner of windows for the index at `index.dir`. Blocks to load the model.

    Raises `ConfigError` where index, model and settings do not fit together, `CorruptionError` for
    damaged files.
    """
    index_dir = newest_dir(Path(index.dir))
    manifest = read_manifest(index_dir)
    facts = index_facts(manifest, settings.nprobe)
    centroids = read_centroids(index_dir, manifest)
    if centroids_fingerprint(centroids) != manifest.centroids_fingerprint:
        path = str(index_dir / CENTROIDS_NAME)
        raise CorruptionError(
            f"{path} has another fingerprint than the manifest says; rebuild the index", path=path
        )
    return WindowWork(
        facts=facts,
        centroids=centroids,
        embedder=load_question_embedder(embedding, manifest),
        group=partial(
            plan_groups,
            policy=settings.policy,
            jaccard_similarity_min=settings.jaccard_similarity_min,
        ),
        grouper=f"{socket.gethostname()[:64]}-{os.getpid()}-{clock.now_us()}",
        clock=clock,
        metrics=metrics,
        lanes=lanes,
        needs_horizon=needs_horizon(index_dir),
    )


def index_facts(manifest: Manifest, nprobe: int) -> IndexFacts:
    """Returns the facts of the index; `nprobe` 0: the index's default. Raises `ConfigError`."""
    if nprobe > manifest.nlist:
        raise ConfigError(
            f"nprobe is {nprobe}, but the index has {manifest.nlist} clusters; set [grouper] "
            "nprobe to at most that, or to 0 for "
            f"the {manifest.nprobe_default} that it was measured for"
        )
    return IndexFacts(
        index_version=manifest.index_version,
        centroids_fingerprint=manifest.centroids_fingerprint,
        embedding_model=manifest.embedding_model,
        embedding_model_name=manifest.embedding_model_name,
        dimension=manifest.dimension,
        nlist=manifest.nlist,
        nprobe_default=nprobe or manifest.nprobe_default,
        recall=manifest.recall,
    )
