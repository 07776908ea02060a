"""The folder `.build` of an unfinished index: state, saved work, files, a lock, and the move."""

from __future__ import annotations

import fcntl
import os
import shutil
import zlib
from pathlib import Path
from typing import Any, Self

import msgspec

from carpool.disk.documents import DOCUMENTS_NAME
from carpool.disk.files import fsync_folder, write_atomically
from carpool.disk.index import files_of
from carpool.disk.manifest import MANIFEST_NAME, read_manifest
from carpool.errors import CarpoolError, ConfigError
from indexer.plan.state import BuildState

BUILD_NAME = ".build"
SEGMENTS = ("clusters-*.seg*", "codes-*")
"""Match all segments, and the files that belong to them."""


def refuse_existing(index_dir: Path, *, force: bool = False) -> None:
    """Raises `ConfigError` where there is an index, unless it may be replaced."""
    if (index_dir / MANIFEST_NAME).exists() and not force:
        raise ConfigError(
            f"there is an index at {index_dir} already; it stays as it is. Give another --out, or "
            "--force to replace it when the new one is complete"
        )


class Workspace:
    """Allows one build at a time in `index_dir`, by a lock. A context manager.

    The files of the new index are written in `finished/`; an index in `index_dir` stays usable.
    `publish` moves them into place, the manifest last. Once `finished/` has a manifest, a later run
    only repeats that move.
    """

    def __init__(self, index_dir: Path) -> None:
        self.index_dir = index_dir
        self.folder = index_dir / BUILD_NAME
        self.shards = self.folder / "shards"
        self.finished = self.folder / "finished"
        self._state_path = self.folder / "state.json"
        self._lock: int | None = None

    def __enter__(self) -> Self:
        """Makes the folders and takes the lock, which ends with the process."""
        try:
            for folder in (self.folder, self.shards, self.finished):
                folder.mkdir(parents=True, exist_ok=True)
            self._lock = os.open(self.folder / "lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
        except OSError as error:
            raise ConfigError(
                f"cannot build in {self.index_dir}: {error.strerror}; give another --out"
            ) from error
        try:
            fcntl.flock(self._lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            os.close(self._lock)
            self._lock = None
            raise ConfigError(
                f"another build is running in {self.index_dir}; wait for it, or give another --out"
            ) from None
        return self

    def __exit__(self, *raised: object) -> None:
        """Releases the lock; the saved work stays for the next run."""
        if self._lock is not None:
            os.close(self._lock)
            self._lock = None

    def read_state(self) -> BuildState | None:
        """Returns the state of the interrupted build; None if there is no readable one."""
        try:
            return msgspec.json.decode(self._state_path.read_bytes(), type=BuildState)
        except (OSError, msgspec.DecodeError, UnicodeDecodeError):
            return None

    def save_state(self, state: BuildState, **changes: Any) -> BuildState:
        """Saves `state` with `changes` of its fields, and returns it. Atomic, durable."""
        state = msgspec.structs.replace(state, **changes)
        write_atomically(
            self._state_path, msgspec.json.format(msgspec.json.encode(state), indent=1)
        )
        return state

    @property
    def has_leftovers(self) -> bool:
        """Whether an earlier run left embedded vectors."""
        return any(self.shards.glob("shard-*.f32"))

    def refuse_unfinished(self) -> None:
        """Raises `ConfigError` where an interrupted build has work that another would remove."""
        if self.has_leftovers or self.read_state() is not None:
            raise ConfigError(
                f"there is an interrupted build in {self.index_dir}; continue it, or remove "
                f"{self.folder}, or give another folder"
            )

    def clear(self, *, keep_documents: bool) -> None:
        """Removes shards and finished files, the documents too unless they are kept."""
        for path in self.shards.iterdir():
            path.unlink()
        for path in self.finished.iterdir():
            if not (keep_documents and path.name.startswith("documents.")):
                path.unlink()

    def save(self, name: str, content: memoryview) -> int:
        """Saves work for a later run; returns its checksum, for `load`. Atomic, durable."""
        write_atomically(self.folder / name, content)
        return zlib.crc32(content)

    def load(self, name: str, crc32: int) -> bytes | None:
        """Returns the saved content; None if it is missing or has another checksum."""
        try:
            content = (self.folder / name).read_bytes()
        except OSError:
            return None
        return content if zlib.crc32(content) == crc32 else None

    @property
    def is_finished(self) -> bool:
        """Whether the new index is complete and only has to be moved into place."""
        try:
            read_manifest(self.finished)
        except CarpoolError:
            return False
        return True

    def publish(self) -> None:
        """Moves the finished index into place and removes the workspace. Can be repeated.

        The old manifest is removed first, so a mixture of two indexes cannot be opened. A process
        that has the old index open keeps its files.
        """
        names = files_of(read_manifest(self.finished))
        (self.index_dir / MANIFEST_NAME).unlink(missing_ok=True)
        fsync_folder(self.index_dir)
        old = [path for pattern in SEGMENTS for path in self.index_dir.glob(pattern)]
        for path in old:
            if path.name not in names:
                path.unlink()  # the old index had more
        for name in names:
            # A missing file was moved already, by a run that was killed in this loop.
            if (self.finished / name).is_file():
                (self.finished / name).replace(self.index_dir / name)
        fsync_folder(self.index_dir)
        (self.finished / MANIFEST_NAME).replace(self.index_dir / MANIFEST_NAME)
        fsync_folder(self.index_dir)
        self.remove()

    def is_published(self, state: BuildState | None) -> bool:
        """Whether the index was moved into place and only the workspace is left to remove.

        Then there is an index, and the workspace has no documents any more, or no state.
        """
        documents_left = (self.finished / DOCUMENTS_NAME).is_file()
        moved = state is None or (state.documents is not None and not documents_left)
        return moved and not self.is_finished and (self.index_dir / MANIFEST_NAME).is_file()

    def remove(self) -> None:
        """Removes the workspace, its state last, so that a kill during removal can be resumed."""
        shutil.rmtree(self.shards, ignore_errors=True)
        shutil.rmtree(self.finished, ignore_errors=True)
        for path in self.folder.iterdir():
            if path != self._state_path:
                path.unlink()
        self._state_path.unlink(missing_ok=True)
        self.folder.rmdir()
