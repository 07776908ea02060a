"""A build that is killed goes on where it was, and ends in the same bytes."""

import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
ENVIRONMENT = {**os.environ, "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"}


@pytest.fixture
def folder() -> Iterator[Path]:
    """In memory where there is such a place: SIGKILL does not tell them apart, and hundreds of
    fsyncs cost nothing.
    """
    shared = Path("/dev/shm")
    with tempfile.TemporaryDirectory(dir=shared if os.access(shared, os.W_OK) else None) as name:
        yield Path(name)


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["force", pytest.param("new", marks=pytest.mark.long)])
def test_a_build_killed_at_any_step_ends_in_the_bytes_of_one_that_was_not(
    folder: Path, kind: str
) -> None:
    """`force` replaces an index, and so has the steps of a new one too."""
    program = Path(__file__).with_name("killed_builds.py")
    command = [sys.executable, str(program), str(folder), kind]
    run = subprocess.run(command, capture_output=True, check=False, text=True, env=ENVIRONMENT)
    assert run.returncode == 0, run.stderr
    found = json.loads(run.stdout)
    assert found["killed"] == found["steps"] >= 40
    assert found["differ"] == []  # steps after which the bytes were others
    assert found["left"] == []  # or something was left behind
    # or an index could be opened that was neither the old nor the new one
    assert found["mixed"] == []
    # Only a life that died when all was in place finds an index that it did not expect.
    assert found["refused"] <= 4
    first_life = [version for version in found["versions"] if version == "2027-01-15T08:00"]
    assert len(first_life) >= len(found["versions"]) - 8
