"""Builds an index again and again, each time killed (SIGKILL) one step later, and lets each be
finished: a program.

    python killed_builds.py FOLDER new|force     prints one JSON object with what it found

A step is a change that the file system keeps: fsync, rename, unlink, rmdir. Every life is a forked
process; this one only imports, so that no thread is lost in a fork.
"""

import json
import os
import shutil
import signal
import sys
from pathlib import Path
from typing import Any

import msgspec

import indexer.build
from carpool.disk.index import files_of
from carpool.disk.manifest import MANIFEST_NAME, read_manifest
from carpool.embedding import EmbeddingSettings
from carpool.errors import CarpoolError, ConfigError
from indexer.build import BuildRequest, build_index
from indexer.progress import SilentProgress
from indexer.settings import IndexerConfig, IndexerSettings
from indexer.verify import verify_index
from tests.indexer.deaths import StepCount

CONFIG = IndexerConfig(
    embedding=EmbeddingSettings(model="hashing:16"),
    indexer=IndexerSettings(threads=1, memory_bytes=8192 + 4096),
)
# Small enough for several segments, written in several passes.
indexer.build.SHARD_ROWS = 32
indexer.build.SEGMENT_BYTES_MAX = 4096 * 4


class LifeClock:
    """Each life begins an hour after the one before it: the version of an index must be the first
    life's.
    """

    def __init__(self, life: int) -> None:
        self.life = life

    def now_us(self) -> int:
        return (1_800_000_000 + self.life * 3600) * 1_000_000

    def host_lead_us(self) -> int:
        return 0


def live(request: BuildRequest, life: int, kill_at: int | None) -> tuple[int | None, int]:
    """Runs one life; returns its exit code (None: killed) and the steps that it took."""
    reading, writing = os.pipe()
    child = os.fork()
    if child == 0:
        steps = StepCount(kill_at)
        try:
            build_index(request, CONFIG, LifeClock(life), SilentProgress())
            os.write(writing, str(steps.taken).encode())
            os._exit(0)
        except ConfigError as error:
            os.write(writing, f"{steps.taken} {error}".encode())
            os._exit(2)
        except BaseException as error:
            os.write(writing, f"{steps.taken} {error!r}".encode())
            os._exit(1)
    os.close(writing)
    with os.fdopen(reading) as stream:
        said = stream.read()
    status = os.waitpid(child, 0)[1]
    if os.WIFSIGNALED(status):
        assert os.WTERMSIG(status) == signal.SIGKILL
        return None, kill_at or 0
    if os.WEXITSTATUS(status) == 1:
        raise RuntimeError(said)
    return os.WEXITSTATUS(status), int(said.split()[0])


def content_of(index_dir: Path) -> dict[str, bytes]:
    """Every file of an index, the manifest without the version, which holds the time that the build
    began.
    """
    manifest = msgspec.structs.replace(read_manifest(index_dir), index_version="")
    files = {name: (index_dir / name).read_bytes() for name in files_of(manifest)}
    return {**files, MANIFEST_NAME: msgspec.json.encode(manifest)}


def kill_everywhere(
    folder: Path, corpus: Path, reference: dict[str, bytes], old: Path | None
) -> dict[str, Any]:
    """Kills a build at each of its steps; `old` is an index that is there before and is replaced
    with --force.
    """
    found: dict[str, Any] = {
        "killed": 0,
        "refused": 0,
        "differ": [],
        "left": [],
        "mixed": [],
        "versions": [],
    }
    kill_at = 0
    while True:
        kill_at += 1
        target = folder / f"at-{kill_at}"
        if old is not None:
            shutil.copytree(old, target)
        request = BuildRequest(corpus=corpus, index_dir=target, nlist=7, force=old is not None)
        code, steps = live(request, 0, kill_at)
        if code is not None:
            found["steps"] = steps
            shutil.rmtree(target)
            return found
        found["killed"] += 1
        began = (target / ".build" / "state.json").is_file()
        found["mixed"] += [problem for problem in problems_of(target) if problem]
        code, _ = live(request, 1, kill_at // 2 + 1)  # a second death on the way
        if code is None:
            found["mixed"] += [problem for problem in problems_of(target) if problem]
            code, _ = live(request, 2, None)
        found["refused"] += code == 2
        if code == 1 or content_of(target) != reference:
            found["differ"].append(kill_at)
        if sorted(path.name for path in target.iterdir()) != sorted(reference):
            found["left"].append(kill_at)
        if began:
            found["versions"].append(read_manifest(target).index_version[:16])
        shutil.rmtree(target)


def problems_of(index_dir: Path) -> tuple[str, ...]:
    """What is wrong with the index that can be opened now; none that can be opened is fine."""
    try:
        return verify_index(index_dir, SilentProgress()).problems
    except ConfigError:
        return ()
    except CarpoolError as error:
        return (str(error),)


def main() -> None:
    folder = Path(sys.argv[1])
    corpus = folder / "corpus.jsonl"
    corpus.write_text(
        "".join(
            json.dumps({"id": f"d{i}", "title": f"T{i}", "text": f"word{i % 7} word{i % 11} same"})
            + "\n"
            for i in range(50)
        )
        + "not json\n"
    )
    other = folder / "other.jsonl"
    other.write_text(
        "".join(json.dumps({"id": f"o{i}", "text": f"other word{i}"}) + "\n" for i in range(20))
    )
    code, _ = live(BuildRequest(corpus=corpus, index_dir=folder / "whole", nlist=7), 0, None)
    assert code == 0
    code, _ = live(BuildRequest(corpus=other, index_dir=folder / "old", nlist=4), 0, None)
    assert code == 0
    reference = content_of(folder / "whole")
    old = folder / "old" if sys.argv[2] == "force" else None
    sys.stdout.write(json.dumps(kill_everywhere(folder, corpus, reference, old)))


if __name__ == "__main__":
    main()
