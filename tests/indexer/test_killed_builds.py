"""A build that is killed goes on where it was, and ends in the same bytes."""

import json
import os
import random
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from carpool.disk.index import files_of
from carpool.disk.manifest import read_manifest
from tests.indexer.helpers import write_corpus

ROOT = Path(__file__).resolve().parents[2]
BUILD = (
    "import indexer.build as b; b.SHARD_ROWS, b.SEGMENT_BYTES_MAX = {}, 2 << 20\n"
    "from cli.index import app; app()"
)
ENVIRONMENT = {**os.environ, "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"}
MANY_ROWS = 200_000
LATER = (
    (0.9, ""),
    (0.9, ""),
    (0.9, ""),
    (0.9, "finished/documents.dat"),
    (0.3, "shards/shard-000012.f32"),
    (0.03, "shards/shard-000024.f32"),
    (0.02, "centroids.f32"),
    (0.02, "assignment.i32"),
    (0.01, "finished/clusters-000004.seg"),
    (0.005, "finished/clusters-000012.seg"),
)
"""Moments at which a large build dies: up to this share of its time after a file is there."""
QUICK_MOMENTS = (0, 5)


@pytest.fixture
def folder() -> Iterator[Path]:
    """In memory where there is such a place: SIGKILL does not tell them apart, and hundreds of
    fsyncs cost nothing.
    """
    shared = Path("/dev/shm")
    with tempfile.TemporaryDirectory(dir=shared if os.access(shared, os.W_OK) else None) as name:
        yield Path(name)


@pytest.mark.slow
def test_a_build_killed_at_any_step_ends_in_the_bytes_of_one_that_was_not(folder: Path) -> None:
    program = Path(__file__).with_name("killed_builds.py")
    run = subprocess.run(
        [sys.executable, str(program), str(folder)],
        capture_output=True,
        check=False,
        text=True,
        env=ENVIRONMENT,
    )
    assert run.returncode == 0, run.stderr
    for found in json.loads(run.stdout).values():
        assert found["killed"] == found["steps"] >= 40
        assert found["differ"] == []  # steps after which the bytes were others
        assert found["left"] == []  # or something was left behind
        assert (
            found["mixed"] == []
        )  # or an index could be opened that was neither the old nor the new one
        # Only a life that died when all was in place finds an index that it did not expect.
        assert found["refused"] <= 4
        first_life = [version for version in found["versions"] if version == "2027-01-15T08:00"]
        assert len(first_life) >= len(found["versions"]) - 8


@pytest.mark.slow
@pytest.mark.parametrize("seed", [1, 2])
def test_the_command_itself_killed_from_outside_while_it_embeds_is_resumed(
    folder: Path, seed: int
) -> None:
    corpus = write_corpus(folder / "c.jsonl", 6000)
    common = [
        "build",
        str(corpus),
        "--model",
        "hashing:16",
        "--json",
    ]

    def command(out: Path) -> list[str]:
        return [sys.executable, "-c", BUILD.format(10), *common, "--out", str(out)]

    shards = folder / "killed" / ".build" / "shards"
    embedded = 0
    chance = random.Random(seed)
    for _ in range(2):
        enough = embedded + chance.randrange(3, 20)
        process = subprocess.Popen(
            command(folder / "killed"),
            env=ENVIRONMENT,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
        )
        while process.poll() is None and len(list(shards.glob("*.f32"))) < enough:
            time.sleep(0.001)
        process.send_signal(signal.SIGKILL)
        process.communicate()
        assert process.returncode == -signal.SIGKILL  # it was still at work
        embedded = len(list(shards.glob("*.f32")))
        assert enough <= embedded < 600
    resumed = subprocess.run(
        command(folder / "killed"), env=ENVIRONMENT, capture_output=True, check=True
    )
    assert f"embedding: {embedded * 10:,} of 6,000 were done before".encode() in resumed.stderr
    subprocess.run(command(folder / "whole"), env=ENVIRONMENT, capture_output=True, check=True)
    for name in files_of(read_manifest(folder / "whole")):
        assert (folder / "killed" / name).read_bytes() == (folder / "whole" / name).read_bytes(), (
            name
        )


@pytest.fixture(scope="module")
def large(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Path, float]]:
    """A corpus of 200,000 passages with an index built in one life, and the seconds that it
    took.
    """
    with tempfile.TemporaryDirectory(dir=tmp_path_factory.getbasetemp()) as name:
        folder = Path(name)
        with (folder / "c.jsonl").open("w") as file:
            for row in range(MANY_ROWS):
                file.write(
                    f'{{"id":"{row}","text":"w{row % 997} w{row % 61} '
                    f'w{row * 7 % 4999} w{row % 13}"}}\n'
                )
        began = time.monotonic()
        subprocess.run(
            large_build(folder, "whole"), env=ENVIRONMENT, capture_output=True, check=True
        )
        yield folder, time.monotonic() - began


def large_build(folder: Path, out: str) -> list[str]:
    """The command: a hundred clusters in many segments, written in several passes."""
    return [
        *(
            sys.executable,
            "-c",
            BUILD.format(8192),
            "build",
            str(folder / "c.jsonl"),
            "--out",
            str(folder / out),
        ),
        *("--model", "hashing:32", "--nlist", "100"),
        *("--set", f"indexer.memory_bytes={8 << 20}"),
    ]


def killed(folder: Path, out: str, moment: int, took_s: float) -> str:
    """Begins a build and kills it at a seeded moment; the last that it said. Begins again where it
    was faster than that.
    """
    wait_s, began_with = LATER[moment]
    wait_s *= took_s
    chance = random.Random(moment)
    while True:
        process = subprocess.Popen(
            large_build(folder, out),
            env=ENVIRONMENT,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
        )
        while (
            began_with
            and process.poll() is None
            and not (folder / out / ".build" / began_with).exists()
        ):
            time.sleep(0.001)
        time.sleep(wait_s * chance.random())
        process.send_signal(signal.SIGKILL)
        said = process.communicate()[1].decode().splitlines()
        is_killed = process.returncode == -signal.SIGKILL
        is_done = (folder / out / "manifest.json").exists() and not (
            folder / out / ".build"
        ).exists()
        if is_killed and not is_done:
            return said[-1] if said else ""
        assert is_done, said
        shutil.rmtree(folder / out)
        wait_s *= 0.7


@pytest.mark.slow
@pytest.mark.parametrize(
    "moment",
    [
        moment if moment in QUICK_MOMENTS else pytest.param(moment, marks=pytest.mark.long)
        for moment in range(len(LATER))
    ],
)
def test_a_large_build_killed_at_a_seeded_moment_ends_in_the_bytes_of_one_that_was_not(
    large: tuple[Path, float], moment: int
) -> None:
    folder, took_s = large
    out = f"killed-{moment}"
    print(f"killed after: {killed(folder, out, moment, took_s)}")
    resumed = subprocess.run(
        large_build(folder, out), env=ENVIRONMENT, capture_output=True, check=False
    )
    # A life that died when all was in place leaves nothing to do but to clear up.
    assert resumed.returncode == 0 or b"an earlier build was complete" in resumed.stderr, (
        resumed.stderr.decode()
    )
    one, other = (read_manifest(folder / name) for name in ("whole", out))
    assert one.files == other.files
    assert (one.build_id, one.index_version[20:]) == (other.build_id, other.index_version[20:])
    names = files_of(one)
    assert one.segment_count > 12
    for name in names:
        assert (folder / "whole" / name).read_bytes() == (folder / out / name).read_bytes(), name
    assert sorted(path.name for path in (folder / out).iterdir()) == sorted(
        [*names, "manifest.json"]
    )
    shutil.rmtree(folder / out)
