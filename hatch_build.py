"""A build hook: compiles the kernel, and puts every package of the tree below `carpool/`.

The tree has several top-level packages (`schemas`, `cli`, ...). An application may have modules of
these names, so the wheel has only `carpool`: `schemas/query.py` becomes `carpool/schemas/query.py`,
and `from schemas.query import Query` becomes `from carpool.schemas.query import Query`. An editable
install is left as it is.

The kernel that scans codes is C++ (`carpool/codes/int4.cpp`). The compiler is $CXX, which may have
options, or c++. Where it makes no kernel that can be loaded, the wheel is for every machine, has
the reason in `no-kernel.txt`, and NumPy scans. `CARPOOL_REQUIRE_KERNEL=1` ends such a build.
"""

from __future__ import annotations

import ast
import ctypes
import os
import re
import shlex
import shutil
import subprocess
import sysconfig
import tempfile
from pathlib import Path
from typing import Any

from hatchling.builders.hooks.plugin.interface import BuildHookInterface

TOP = "carpool"
PACKAGES = (
    "schemas",
    "producers",
    "grouper",
    "searcher",
    "generator",
    "gateway",
    "indexer",
    "cli",
)
"""The packages that the wheel has below `carpool`."""
ONLY_HERE = ("bench",)
"""Packages that the wheel lacks: a figure belongs to a revision, so it is made in a checkout."""
CODES, LIBRARY, NO_KERNEL = Path(TOP, "codes"), "libint4.so", "no-kernel.txt"
NOT_PACKED = {"__pycache__", LIBRARY, f"{LIBRARY}.new"}
GLIBC_MIN, GLIBCXX_MAX = 24, (3, 4, 22)
"""Every system with glibc 2.24 has this libstdc++: both are of 2016."""


class WheelLayout(BuildHookInterface[Any]):
    """Adds the rewritten files to a standard wheel."""

    PLUGIN_NAME = "custom"

    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        """Writes the rewritten files into a temporary folder, and lists them in `build_data`."""
        self._temporary = tempfile.TemporaryDirectory(prefix="carpool-wheel-")
        self._folder = Path(self._temporary.name)
        root, library = Path(self.root), self._folder / LIBRARY
        try:
            compile_kernel(root / CODES / "int4.cpp", library)
            if version == "editable":
                new = shutil.copy(library, root / CODES / f"{LIBRARY}.new")
                os.replace(new, root / CODES / LIBRARY)  # services may have the old one open
        except (OSError, ValueError) as error:
            library = self._folder / NO_KERNEL
            library.write_text(f"the kernel was not compiled: {error}\n", "utf-8")
            warning = library.read_text("utf-8") + "Without it NumPy scans, fifty times slower"
            if os.environ.get("CARPOOL_REQUIRE_KERNEL") == "1":
                self.app.abort(f"{warning}; CARPOOL_REQUIRE_KERNEL=1 allows no such installation")
            self.app.display_warning(warning)
        if version == "editable":
            return
        if library.name == LIBRARY:
            build_data |= {"pure_python": False, "tag": f"py3-none-{platform_tag(library)}"}
        build_data["force_include"][str(library)] = str(CODES / library.name)
        for name in (TOP, *PACKAGES):
            for file in sorted((root / name).rglob("*")):
                if not file.is_file() or NOT_PACKED & set(file.parts):
                    continue
                place = file.relative_to(root)
                target = place if name == TOP else TOP / place
                build_data["force_include"][str(self._rewritten(file, target))] = str(target)

    def finalize(self, version: str, build_data: dict[str, Any], artifact_path: str) -> None:
        """Removes the temporary folder."""
        self._temporary.cleanup()

    def _rewritten(self, file: Path, target: Path) -> Path:
        if file.suffix != ".py":
            return file
        written = self._folder / target
        written.parent.mkdir(parents=True, exist_ok=True)
        written.write_text(with_one_top(file.read_text(encoding="utf-8"), str(file)), "utf-8")
        return written


def compile_kernel(source: Path, library: Path) -> None:
    """Compiles `source` to `library`, and loads it. Raises `OSError` or `ValueError`."""
    compiler = shlex.split(os.environ.get("CXX", "")) or ["c++"]
    # Without contractions every instruction set computes the same numbers.
    options = ["-O3", "-std=c++17", "-ffp-contract=off", "-shared", "-fPIC", "-pthread"]
    command = [*compiler, *options, "-o", str(library), str(source)]
    done = subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, check=False)
    if done.returncode:
        said = done.stdout.decode(errors="replace").strip().splitlines()[-5:]
        raise OSError("\n".join([f"`{shlex.join(compiler)}` ended with {done.returncode}", *said]))
    if not os.statvfs(library.parent).f_flag & os.ST_NOEXEC:
        ctypes.CDLL(str(library))


def platform_tag(library: Path) -> str:
    """Returns the platform of the wheel, `manylinux` if `library` needs old symbols only."""
    platform = sysconfig.get_platform().replace("-", "_").replace(".", "_")
    content = library.read_bytes()
    glibc = [int(minor) for minor in re.findall(rb"\0GLIBC_2\.(\d+)", content)]
    glibcxx = re.findall(rb"\0GLIBCXX_(\d+)\.(\d+)\.(\d+)", content)
    if not glibc or max(tuple(map(int, one)) for one in [*glibcxx, (0, 0, 0)]) > GLIBCXX_MAX:
        return platform
    return platform.replace("linux", f"manylinux_2_{max(GLIBC_MIN, *glibc)}", 1)


def with_one_top(source: str, name: str) -> str:
    """Returns `source` with every absolute import of our own packages below `carpool`.

    Raises `ValueError` for `import schemas.query` without `as`: it binds the name `schemas`, and
    every use of that name would have to change too.
    """
    lines = source.splitlines(keepends=True)
    for node in ast.walk(ast.parse(source, name)):
        if isinstance(node, ast.ImportFrom) and node.level == 0 and _is_ours(node.module or ""):
            _replace(lines, node, f"from {node.module}", f"from {TOP}.{node.module}")
        elif isinstance(node, ast.Import):
            for alias in node.names:
                if not _is_ours(alias.name):
                    continue
                if alias.asname is None:
                    raise ValueError(f"{name}:{node.lineno}: write `from ... import`, or add `as`")
                _replace(lines, alias, alias.name, f"{TOP}.{alias.name}")
    return "".join(lines)


def _is_ours(module: str) -> bool:
    return module.partition(".")[0] in (*PACKAGES, *ONLY_HERE)


def _replace(lines: list[str], node: ast.stmt | ast.alias, old: str, new: str) -> None:
    # `col_offset` counts bytes of UTF-8.
    line = lines[node.lineno - 1].encode()
    before, after = line[: node.col_offset], line[node.col_offset :]
    if not after.startswith(old.encode()):
        raise ValueError(f"line {node.lineno}: expected {old!r}")
    lines[node.lineno - 1] = (before + after.replace(old.encode(), new.encode(), 1)).decode()
