"""A build hook: compiles the kernel, and puts every package of the tree below `carpool/`.

The tree has several top-level packages (`schemas`, `cli`, ...). An application may have modules of
these names, so the wheel has only `carpool`: `schemas/query.py` becomes `carpool/schemas/query.py`,
and `from schemas.query import Query` becomes `from carpool.schemas.query import Query`. An editable
install is left as it is.

The kernel that scans codes is C++ (`carpool/codes/int4.cpp`). The compiler is $CXX, or c++. Where
there is none, the wheel is for every machine, and NumPy does the work of the kernel.
"""

from __future__ import annotations

import ast
import os
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
    "indexer",
    "cli",
    "bench",
)
"""The packages that the wheel has below `carpool`."""


class WheelLayout(BuildHookInterface[Any]):
    """Adds the rewritten files to a standard wheel."""

    PLUGIN_NAME = "custom"

    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        """Writes the rewritten files into a temporary folder, and lists them in `build_data`."""
        has_kernel = compile_kernel(Path(self.root))
        if not has_kernel:
            self.app.display_warning("there is no C++ compiler: NumPy will scan codes, slowly")
        if version == "editable":
            return
        if has_kernel:
            platform = sysconfig.get_platform().replace("-", "_").replace(".", "_")
            build_data |= {"pure_python": False, "tag": f"py3-none-{platform}"}
        self._folder = Path(tempfile.mkdtemp(prefix="carpool-wheel-"))
        root = Path(self.root)
        for name in (TOP, *PACKAGES):
            for file in sorted((root / name).rglob("*")):
                if not file.is_file() or "__pycache__" in file.parts:
                    continue
                place = file.relative_to(root)
                target = place if name == TOP else TOP / place
                build_data["force_include"][str(self._rewritten(file, target))] = str(target)

    def finalize(self, version: str, build_data: dict[str, Any], artifact_path: str) -> None:
        """Removes the temporary folder."""
        if version != "editable":
            shutil.rmtree(self._folder)

    def _rewritten(self, file: Path, target: Path) -> Path:
        if file.suffix != ".py":
            return file
        written = self._folder / target
        written.parent.mkdir(parents=True, exist_ok=True)
        written.write_text(with_one_top(file.read_text(encoding="utf-8"), str(file)), "utf-8")
        return written


def compile_kernel(root: Path) -> bool:
    """Compiles the kernel of the tree at `root`; returns False where there is no compiler."""
    folder = root / "carpool" / "codes"
    target, new = folder / "libint4.so", folder / "libint4.so.new"
    sources = folder / "int4.cpp", folder / "int4_scan.h"
    compiler = os.environ.get("CXX", "c++")
    if shutil.which(compiler) is None:
        target.unlink(missing_ok=True)
        return False
    if target.exists() and all(s.stat().st_mtime < target.stat().st_mtime for s in sources):
        return True
    # Without contractions every instruction set computes the same numbers.
    options = ["-O3", "-std=c++17", "-ffp-contract=off", "-shared", "-fPIC", "-pthread"]
    subprocess.run([compiler, *options, "-o", new, sources[0]], check=True)
    new.replace(target)  # services may have the old one open
    return True


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
    return module.partition(".")[0] in PACKAGES


def _replace(lines: list[str], node: ast.stmt | ast.alias, old: str, new: str) -> None:
    # `col_offset` counts bytes of UTF-8.
    line = lines[node.lineno - 1].encode()
    before, after = line[: node.col_offset], line[node.col_offset :]
    if not after.startswith(old.encode()):
        raise ValueError(f"line {node.lineno}: expected {old!r}")
    lines[node.lineno - 1] = (before + after.replace(old.encode(), new.encode(), 1)).decode()
