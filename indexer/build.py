"""Builds an index: corpus to documents, to vectors, to clusters, to its folder; resumable."""

from __future__ import annotations

import errno
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

import msgspec

from carpool.clock import Clock
from carpool.disk.documents import DocumentStore, DocumentWriter, Passage
from carpool.disk.extents import SEGMENT_BYTES_MAX
from carpool.disk.manifest import Manifest, read_manifest
from carpool.embedding.loader import fingerprint_of, load_embedder
from carpool.errors import ConfigError
from indexer.clustering import cluster_and_write
from indexer.corpus import CorpusReader, file_sha256
from indexer.plan.state import (
    SHARD_ROWS,
    BuildIdentity,
    BuildState,
    ClusteringIdentity,
    CorpusIdentity,
    DocumentsDone,
    LayoutIdentity,
    LineProblem,
    Resume,
    VectorsIdentity,
    plan_resume,
    plan_shards,
)
from indexer.progress import ProgressReport
from indexer.settings import IndexerConfig
from indexer.vectors import (
    Vectors,
    check_stored,
    embed_shards,
    is_saved,
    open_precomputed,
    open_shards,
)
from indexer.workspace import BUILD_NAME, Workspace, refuse_existing
from indexer.write import digest_of_id, documents_build_id, write_keys

LONGER = "longer than the {} characters that a prompt shows (generator.passage_chars_max)"
PROBLEMS_LISTED = 20
"""Reasons of bad lines that are listed; all lines are counted."""
_DETAILS = re.compile(r"\d+|'.*'|\".*\"")
"""What two lines that are bad for one reason may differ in: numbers, and what is quoted."""


@dataclass(frozen=True, kw_only=True)
class BuildRequest:
    """What to build. `nlist` 0: the default for the row count. `vectors`: an .npy file of vectors.

    `fingerprint` names the model that made `vectors`; empty: the model of the settings. `force`
    replaces a complete index, `restart` discards an interrupted build of another corpus or model.
    `fields`: the names of `id`, `text` or `title` in the corpus, where they are others.
    `prompt_chars`: what a prompt shows of a passage; longer ones are counted in a note.
    """

    corpus: Path
    index_dir: Path
    nlist: int = 0
    seed: int = 0
    strict: bool = False
    force: bool = False
    restart: bool = False
    vectors: Path | None = None
    fingerprint: str = ""
    fields: Mapping[str, str] = field(default_factory=dict)
    prompt_chars: int | None = None


@dataclass(frozen=True, kw_only=True)
class BuildReport:
    """The result of a build."""

    manifest: Manifest
    documents: DocumentsDone


def build_index(
    request: BuildRequest, config: IndexerConfig, clock: Clock, progress: ProgressReport
) -> BuildReport:
    """Builds the requested index, or continues an interrupted build of it. Blocks.

    After a kill the same call continues and ends in the same bytes. Raises `ConfigError` where
    something is missing or does not fit; an existing index then stays as it is.
    """
    try:
        return _build(request, config, clock, progress)
    except OSError as error:
        if error.errno not in (errno.ENOSPC, errno.EDQUOT, errno.EROFS, errno.EACCES):
            raise
        raise ConfigError(
            f"cannot write the index in {request.index_dir}: {error.strerror}; make room (vectors "
            "take 4 * dimension bytes a passage, twice while building) and run the same command "
            "again: it continues"
        ) from error


def _build(
    request: BuildRequest, config: IndexerConfig, clock: Clock, progress: ProgressReport
) -> BuildReport:
    if not (request.index_dir / BUILD_NAME).is_dir():
        # Refuse before the long reads of corpus and vectors. With a workspace, its state decides.
        refuse_existing(request.index_dir, force=request.force)
    identity = identify(request, config, progress)
    if (report := _roll_forward(request, identity, progress)) is not None:
        return report
    refuse_existing(request.index_dir, force=request.force)
    with Workspace(request.index_dir) as workspace:
        build = _Build(workspace, request, config, progress)
        state = build.resume(plan_resume(workspace.read_state(), identity, now_us=clock.now_us()))
        documents = build.documents(state)
        state = workspace.save_state(state, documents=documents)
        state, vectors = build.vectors(state, documents.row_count)
        manifest = cluster_and_write(workspace, config.indexer, state, vectors, progress)
        workspace.publish()
    return BuildReport(manifest=manifest, documents=documents)


def identify(
    request: BuildRequest, config: IndexerConfig, progress: ProgressReport
) -> BuildIdentity:
    """Returns what the bytes of the index depend on. Reads corpus, vectors and model; blocks."""
    if not request.corpus.is_file():
        raise ConfigError(
            f"there is no corpus at {request.corpus}: give a file of JSON lines, plain or gzip"
        )
    indexer, embedding = config.indexer, config.embedding
    sha256 = {
        path: _sha256(path, what, progress)
        for path, what in ((request.corpus, "corpus"), (request.vectors, "vectors"))
        if path is not None
    }
    progress.note(f"the model is {embedding.model}")  # its fingerprint may take seconds
    return BuildIdentity(
        corpus=CorpusIdentity(
            size_bytes=request.corpus.stat().st_size,
            sha256=sha256[request.corpus],
            passage_bytes_max=indexer.passage_bytes_max,
            fields=dict(request.fields),
        ),
        vectors=VectorsIdentity(
            embedding_model=request.fingerprint or fingerprint_of(embedding),
            embedding_model_name=embedding.model,
            vectors_sha256=sha256[request.vectors] if request.vectors else "",
            shard_rows=SHARD_ROWS,
        ),
        clustering=ClusteringIdentity(
            nlist=request.nlist, seed=request.seed, train_bytes_max=indexer.memory_bytes
        ),
        layout=LayoutIdentity(
            vector_dtype=indexer.vector_dtype,
            segment_bytes_max=SEGMENT_BYTES_MAX,
            code_rows_min=indexer.code_rows_min,
        ),
    )


def _sha256(path: Path, what: str, progress: ProgressReport) -> str:
    if path.is_file():
        progress.start(f"fingerprint of the {what} (bytes)", path.stat().st_size)
    return file_sha256(path, what, progress.advance)


def _roll_forward(
    request: BuildRequest, identity: BuildIdentity, progress: ProgressReport
) -> BuildReport | None:
    """Publishes the complete index of a killed build; None if it is not the requested index."""
    if not (request.index_dir / BUILD_NAME).is_dir():
        return None
    with Workspace(request.index_dir) as workspace:
        state = workspace.read_state()
        if workspace.is_finished:
            refuse_existing(request.index_dir, force=request.force)
            workspace.publish()
        elif workspace.is_published(state):
            workspace.remove()
        else:
            return None
    manifest = read_manifest(request.index_dir)
    progress.note(f"an earlier build was complete: index {manifest.index_version} is in place")
    if state is None or state.identity != identity or state.documents is None:
        return None
    return BuildReport(manifest=manifest, documents=state.documents)


@dataclass(frozen=True)
class _Build:
    """The first half of a build: documents, then vectors. Each step continues saved work."""

    workspace: Workspace
    request: BuildRequest
    config: IndexerConfig
    progress: ProgressReport

    def resume(self, resume: Resume) -> BuildState:
        """Removes what cannot be kept, or raises `ConfigError` where that needs `restart`."""
        if resume.discards and self.workspace.has_leftovers and not self.request.restart:
            raise ConfigError(
                f"an interrupted build in {self.request.index_dir} is of something else:\n  "
                + "\n  ".join(resume.changes)
                + "\nGive the options that it was started with to continue it, --restart to "
                "discard its work, or another --out."
            )
        for change in resume.changes:
            self.progress.note(f"changed since the interrupted build: {change}")
        if not resume.keeps_shards:
            self.workspace.clear(keep_documents=resume.state.documents is not None)
        return self.workspace.save_state(resume.state)

    def documents(self, state: BuildState) -> DocumentsDone:
        """Reads the corpus into the document store, unless an earlier run did."""
        documents = state.documents
        if documents is None:
            documents = self._read_corpus(state.identity.corpus)
        else:
            self.progress.note(
                f"continuing an interrupted build: {documents.row_count:,} passages are read "
                "already"
            )
        if self.request.strict and documents.problem_count:
            raise ConfigError(describe_problems(documents) + "\nNothing was built (--strict).")
        if not documents.row_count:
            detail = "\n" + describe_problems(documents) if documents.problem_count else ""
            raise ConfigError(
                f"the corpus {self.request.corpus} has no passage that can be indexed{detail}\n"
                'Give a file with a passage a line, such as {"id": "1", "title": "", "text": "..."}'
            )
        return documents

    def _read_corpus(self, corpus: CorpusIdentity) -> DocumentsDone:
        """Reads the corpus into a new document store."""
        reader = CorpusReader(
            self.request.corpus,
            passage_bytes_max=self.config.indexer.passage_bytes_max,
            fields=corpus.fields,
        )
        self.progress.start("reading (bytes)", reader.size_bytes)
        writer = DocumentWriter(self.workspace.finished, documents_build_id(corpus))
        problems: dict[str, LineProblem] = {}
        problem_count = position_bytes = 0
        digests = bytearray()
        shown = self.request.prompt_chars
        try:
            for found in reader:
                if isinstance(found, Passage):
                    writer.append(found)
                    digests += digest_of_id(found.doc_id)
                    if shown is not None and len(" ".join(found.text.split())) > shown:
                        reader.notes[LONGER.format(shown)] += 1
                else:
                    problem_count += 1
                    reason = _DETAILS.sub("", found.why)
                    if first := problems.get(reason):
                        found = msgspec.structs.replace(first, count=first.count + 1)
                    if first or len(problems) < PROBLEMS_LISTED:
                        problems[reason] = found
                self.progress.advance(reader.position_bytes - position_bytes)
                position_bytes = reader.position_bytes
        except BaseException:
            writer.abandon()
            raise
        writer.close()
        write_keys(self.workspace.finished, digests)
        self.progress.advance(reader.size_bytes - position_bytes)
        return DocumentsDone(
            row_count=writer.row_count,
            problem_count=problem_count,
            problems=tuple(problems.values()),
            notes=dict(reader.notes),
        )

    def vectors(self, state: BuildState, row_count: int) -> tuple[BuildState, Vectors]:
        """Embeds the missing vectors, or checks precomputed ones, unless an earlier run did."""
        path, build_id = self.request.vectors, documents_build_id(state.identity.corpus)
        with DocumentStore(self.workspace.finished, row_count, build_id) as passages:
            if path is None:
                return self._embed(state, passages)
            vectors = open_precomputed(path, row_count)
            if state.dimension is None:
                self.progress.start("checking vectors", row_count)
                check_stored(vectors, str(path), self.progress.advance, passages)
                state = self.workspace.save_state(state, dimension=vectors.dimension)
        return state, vectors

    def _embed(self, state: BuildState, passages: DocumentStore) -> tuple[BuildState, Vectors]:
        """Embeds the missing shards; loads the model only if there are any."""
        row_count = passages.table.document_count
        folder, dimension = self.workspace.shards, state.dimension
        shards = plan_shards(row_count, state.identity.vectors.shard_rows)
        remaining = [
            shard for shard in shards if not (dimension and is_saved(folder, shard, dimension))
        ]
        if remaining or dimension is None:
            settings = self.config.embedding
            self.progress.note(f"loading the model {settings.model} (slower at its first use)")
            embedder = load_embedder(settings, are_passages=True)
            dimension = embedder.dimension
            state = self.workspace.save_state(state, dimension=dimension)
            remaining_rows = sum(map(len, remaining))
            self.progress.start("embedding", row_count, row_count - remaining_rows)
            embed_shards(folder, remaining, passages, embedder, self.progress.advance)
        return state, open_shards(folder, shards, dimension)


def describe_problems(documents: DocumentsDone) -> str:
    """Returns the bad lines of a corpus as text: their count, then each reason with a number."""
    many = "s" * (documents.problem_count > 1)
    lines = [
        f"{documents.problem_count:,} bad line{many} in the corpus ({documents.row_count:,} good "
        "ones):"
    ]
    for problem in documents.problems:
        such = f" ({problem.count:,} such lines)" if problem.count > 1 else ""
        lines.append(f"  line {problem.line}: {problem.why}{such}")
    if more := documents.problem_count - sum(problem.count for problem in documents.problems):
        lines.append(f"  and {more:,} more")
    return "\n".join(lines)
