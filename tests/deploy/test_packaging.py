"""The locks, the light base install, and the lines that say what a machine lacks."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tests import conftest

ROOT = Path(__file__).resolve().parents[2]
LOCKS = ("base", "services", "vllm", "dev")


def pins(name: str) -> dict[str, str]:
    return dict(re.findall(r"(?m)^([^#=\s]+)==(\S+)", lock(name)))


def lock(name: str) -> str:
    """A lock, with each package and its hashes in one line."""
    text = (ROOT / f"requirements/{name}.txt").read_text(encoding="utf-8")
    return text.replace(" \\\n", " ")


def test_all_locks_agree_on_every_version() -> None:
    every = [(package, version) for name in LOCKS for package, version in pins(name).items()]
    versions = dict(every)
    assert [pin for pin in every if versions[pin[0]] != pin[1]] == []
    assert pins("base").items() <= pins("services").items() <= pins("dev").items()
    assert pins("services").items() <= pins("vllm").items()


@pytest.mark.parametrize("name", [*LOCKS, "models", "demo"])
def test_a_lock_holds_exact_pins_and_no_places(name: str) -> None:
    pin = re.compile(r"[a-z0-9_.-]+==[a-z0-9_.+]+( ; \S.*?)?( +--hash=sha256:[0-9a-f]{64})+")
    for line in lock(name).splitlines():
        assert line.startswith("#") or pin.fullmatch(line), line


def test_the_client_needs_neither_torch_nor_faiss_nor_numpy() -> None:
    heavy = {"torch", "faiss-cpu", "numpy", "onnxruntime", "aiohttp", "sentence-transformers"}
    assert heavy.isdisjoint(pins("base"))


NEEDY = """
import pytest
@pytest.mark.kafka
def test_one(): ...
@pytest.mark.kafka
def test_skips_itself(): pytest.skip("no port")
@pytest.mark.slow
def test_long(): ...
def test_plain(): ...
"""


def run_needy(folder: Path, **environment: str) -> subprocess.CompletedProcess[str]:
    shutil.copy(ROOT / "tests/conftest.py", folder / "conftest.py")
    shutil.copy(ROOT / "pyproject.toml", folder / "pyproject.toml")
    (folder / "test_needy.py").write_text(NEEDY, encoding="utf-8")
    foreign = ("CARPOOL_", "KAFKA_", "PYTEST_")
    base = {name: text for name, text in os.environ.items() if not name.startswith(foreign)}
    return subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "test_needy.py"],
        cwd=folder,
        env=base | environment,
        capture_output=True,
        text=True,
        check=False,
    )


def test_what_is_lacking_is_said_once_with_its_reason(tmp_path: Path) -> None:
    done = run_needy(tmp_path)
    assert done.returncode == 0, done.stdout
    assert "kafka: 2 tests skipped: KAFKA_HOME is not set" in done.stdout
    assert "slow: 1 test skipped: --run-slow was not given" in done.stdout


def test_a_test_that_skips_itself_although_its_need_is_met_fails_a_run_that_requires_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, content in (("bin/java", "#!/bin/sh\n"), ("libs/some.jar", "")):
        (tmp_path / name).parent.mkdir()
        (tmp_path / name).write_text(content)
    (tmp_path / "bin/java").chmod(0o755)
    here = {"KAFKA_HOME": str(tmp_path), "PATH": f"{tmp_path}/bin:{os.environ['PATH']}"}
    done = run_needy(tmp_path, **here, CARPOOL_REQUIRE="kafka")
    assert done.returncode == 1
    assert "CARPOOL_REQUIRE names kafka, and its tests were skipped" in done.stdout
    monkeypatch.setenv("CARPOOL_REQUIRE", "kafak")
    with pytest.raises(pytest.UsageError, match="kafak"):
        conftest._required()
