"""An installation compiles the kernel anew, or goes on without it and says why there is none."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
NOT_BUILT_FROM = (".*", "__pycache__", "bench", "deploy", "docs", "tests")
LIBRARY, STRAY = Path("carpool/codes/libint4.so"), b"of another machine"
KERNEL = "codes are scanned by (avx512|avx2|neon|plain)"
NONE = "codes are scanned by numpy, fifty times slower: the kernel was not compiled: "
HERE = {name: value for name, value in os.environ.items() if not name.startswith("CARPOOL_")}
MOUNTS = (  # the tree cannot be written, and nothing in the temporary folder can be executed
    'mount --bind . . && mount -o remount,bind,ro . && cd "$PWD" && ! touch x && '
    'mkdir -p "$TMPDIR" && mount -t tmpfs -o noexec none "$TMPDIR" && exec "$@"'
)

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(shutil.which("c++") is None, reason="there is no C++ compiler"),
]


@pytest.fixture
def tree(tmp_path: Path) -> Path:
    """What a build reads, as in an image, without git; with a library that nobody may pack."""
    tree = tmp_path / "tree"
    shutil.copytree(ROOT, tree, ignore=shutil.ignore_patterns(*NOT_BUILT_FROM))
    (tree / LIBRARY).write_bytes(STRAY)
    return tree


def said_by(command: list[str], cwd: Path, **environ: str) -> str:
    done = subprocess.run(command, cwd=cwd, env=HERE | environ, capture_output=True, text=True)
    return done.stdout + done.stderr


def build(tree: Path, kind: str = "wheel", before: tuple[str, ...] = (), **environ: str) -> str:
    made = str(tree.parent / "made")
    hatch = [sys.executable, "-m", "hatchling", "build", "-t", kind, "-d", made]
    return said_by([*before, *hatch], tree, **environ)


def installed(tree: Path, *command: str) -> str:
    """Returns what a command of the wheel that was built says."""
    (wheel,), site = (tree.parent / "made").iterdir(), tree.parent / "site"
    if not site.exists():
        zipfile.ZipFile(wheel).extractall(site)
    return said_by([sys.executable, "-m", "carpool", *command], site, PYTHONPATH=str(site))


@pytest.mark.parametrize(
    ("environ", "version"),
    [
        pytest.param({}, KERNEL, id="unset"),
        pytest.param({"CXX": ""}, KERNEL, id="empty"),
        pytest.param({"CXX": "c++ -O2"}, KERNEL, id="with-options"),
        pytest.param({"CXX": "ccache c++"}, KERNEL, id="behind-a-launcher"),
        pytest.param({"CXX": "none"}, f"{NONE}.*'none'", id="none"),
        pytest.param({"CXX": "false"}, f"{NONE}`false` ended with 1", id="that-fails"),
        pytest.param({"CXX": "c++ -no-such"}, f"{NONE}.*\n.*no-such", id="that-says-why"),
        pytest.param({"CXX": "gcc"}, f"{NONE}.*undefined symbol", id="of-c-does-not-link"),
        pytest.param({"CXX": "c++ '"}, f"{NONE}No closing quotation", id="not-a-command"),
        pytest.param({"PATH": "/nowhere"}, f"{NONE}.*'c\\+\\+'", id="no-compiler"),
    ],
)
def test_a_wheel_has_the_kernel_that_was_compiled_or_the_reason_why_none(
    tree: Path, environ: dict[str, str], version: str
) -> None:
    quick = {name: f'{shutil.which(name)} "$@" -O0' for name in ("c++", "gcc")}
    for name, runs in ({"ccache": '"$@"'} | quick).items():
        (tree.parent / name).write_text(f"#!/bin/sh\nexec {runs}\n")
        (tree.parent / name).chmod(0o755)
    path = {"PATH": f"{tree.parent}{os.pathsep}{HERE['PATH']}"}
    said = build(tree, **path | environ)
    assert re.search("-(manylinux_2_|linux_)" if version == KERNEL else "-any.whl", said)
    assert ("fifty times slower" in said) == (version != KERNEL)
    assert re.search(version, installed(tree, "--version"))
    assert (tree / LIBRARY).read_bytes() == STRAY


def test_a_wheel_is_built_where_nothing_can_be_written_or_executed(tree: Path) -> None:
    if subprocess.run(["unshare", "-Urm", "true"], check=False).returncode:
        pytest.skip("this system allows no mounts of one's own")
    (tree.parent / "made").mkdir()
    mounts = ("unshare", "-Urm", "/bin/sh", "-c", MOUNTS, "sh")
    said = build(tree, before=mounts, TMPDIR=str(tree.parent / "noexec"))
    assert re.search(KERNEL, installed(tree, "--version")), said
    assert "checkout of Carpool" in installed(tree, "bench", "--help")
    (tree.parent / "site" / LIBRARY).write_bytes(STRAY)
    assert f"slower: {tree.parent / 'site' / LIBRARY}" in installed(tree, "--version")


def test_where_the_kernel_is_required_a_build_without_it_ends(tree: Path) -> None:
    said = build(tree, CXX="false", CARPOOL_REQUIRE_KERNEL="1")
    assert "`false` ended with 1" in said and "CARPOOL_REQUIRE_KERNEL=1" in said
    assert not list(tree.parent.glob("made/*"))


def test_an_editable_installation_keeps_its_library_until_there_is_a_new_one(tree: Path) -> None:
    assert "fifty times slower" in build(tree, "wheel:editable", CXX="none")
    assert (tree / LIBRARY).read_bytes() == STRAY
    build(tree, "wheel:editable")
    version = [sys.executable, "-m", "carpool", "--version"]
    assert re.search(KERNEL, said_by(version, tree, PYTHONPATH=str(tree)))
