"""Fails on what nobody needs: modules, names, settings, and rows of the rooms' tables.

A use in the tests keeps nothing alive; `carpool/testing` is for the tests of applications.
"""

from __future__ import annotations

import ast
import re
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path

PRODUCT = (
    "carpool", "cli", "gateway", "generator", "grouper", "indexer", "producers", "schemas",
    "searcher",
)  # fmt: skip
OTHERS = ("bench", "deploy", "examples", ".ci", "docs", "hatch_build.py")
FOR_APPLICATIONS = Path("carpool/testing")
LINK = re.compile(r"\]\(([^)#:]+)\)")
WORD = re.compile(r"\w+")

Trees = dict[Path, ast.Module]


def main() -> None:
    """Prints what it finds, and exits with 1 where that is anything."""
    command = ["git", "ls-files"]
    listed = subprocess.run(command, capture_output=True, check=True, text=True)
    files = [path for path in map(Path, listed.stdout.splitlines()) if path.is_file()]
    code = {
        path: ast.parse(path.read_text(encoding="utf-8")) for path in files if path.suffix == ".py"
    }
    trees = {path: tree for path, tree in code.items() if path.parts[0] in PRODUCT + OTHERS}
    scripts = [
        path.read_text(encoding="utf-8")
        for path in files
        if path.parts[0] != "tests" and path.suffix in ("", ".sh", ".toml", ".yml")
    ]
    found = [
        *dead_modules(trees, scripts),
        *dead_names(trees, Counter(name for tree in code.values() for name in uses(tree))),
        *dead_settings(trees),
        *dead_rows(path for path in files if path.name == "README.md" and path.parts[0] in PRODUCT),
    ]
    sys.stdout.write("".join(f"{each}\n" for each in found) + f"{len(found)} dead things\n")
    sys.exit(bool(found))


def dead_modules(trees: Trees, scripts: list[str]) -> Iterator[str]:
    """Yields modules that no module imports, and no script or module names."""
    imported = {name for tree in trees.values() for name in imports(tree)}
    named = {word for tree in trees.values() for text in strings(tree) for word in text.split()}
    for path in trees:
        name = ".".join(path.with_suffix("").parts)
        is_started = path.stem in ("__init__", "__main__") or path.parts[0] in OTHERS[1:]
        if is_started or name in imported or {name, path.name} & named:
            continue
        if not any(name in text or path.as_posix() in text for text in scripts):
            yield f"{path}: nothing imports it"


def imports(tree: ast.Module) -> Iterator[str]:
    """Yields the full names of what a module imports, modules and names in them."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from (each.name for each in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module:
            yield node.module
            yield from (f"{node.module}.{each.name}" for each in node.names)


def strings(tree: ast.Module) -> Iterator[str]:
    """Yields the texts of a module, without its documentation."""
    documented = {id(node.value) for node in ast.walk(tree) if isinstance(node, ast.Expr)}
    constants = (node for node in ast.walk(tree) if isinstance(node, ast.Constant))
    for node in constants:
        if isinstance(node.value, str) and id(node) not in documented:
            yield node.value


def dead_names(trees: Trees, used_anywhere: Counter[str]) -> Iterator[str]:
    """Yields functions, classes and constants that no code names; methods, not even a test's."""
    used = Counter(name for tree in trees.values() for name in uses(tree))
    for path, tree in trees.items():
        if path.parts[0] in OTHERS[1:] or path.is_relative_to(FOR_APPLICATIONS):
            continue
        for name, line, is_method in definitions(tree):
            of = used_anywhere if is_method else used
            if not of[name] and not name.startswith("__"):
                yield f"{path}:{line}: nothing uses {name}"


def uses(tree: ast.Module) -> Iterator[str]:
    """Yields the names that a module reads, imports, passes, or has in its texts."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Load):
            yield node.id
        elif isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Load):
            yield node.attr
        elif isinstance(node, ast.alias):
            yield node.name.rpartition(".")[2]
    for text in strings(tree):
        yield from WORD.findall(text)


def definitions(tree: ast.Module) -> Iterator[tuple[str, int, bool]]:
    """Yields names, lines, and whether it is a method: of a module, and of its classes.

    Left out: what a decorator registers, and classes that a library calls by a base of theirs.
    """
    for node in tree.body:
        inner = node.body if isinstance(node, ast.ClassDef) and not node.bases else ()
        for each in (node, *inner):
            if isinstance(each, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
                if not any(isinstance(mark, ast.Call) for mark in each.decorator_list):
                    yield each.name, each.lineno, each is not node
            elif isinstance(each, ast.Assign):
                for target in each.targets:
                    if isinstance(target, ast.Name):
                        yield target.id, each.lineno, each is not node


def dead_settings(trees: Trees) -> Iterator[str]:
    """Yields settings that no module of the product reads."""
    product = {path: tree for path, tree in trees.items() if path.parts[0] in PRODUCT}
    read = {name for tree in product.values() for name in uses(tree)}
    for path, tree in product.items():
        for node in tree.body:
            if not isinstance(node, ast.ClassDef) or not node.name.endswith("Settings"):
                continue
            fields = (field for field in node.body if isinstance(field, ast.AnnAssign))
            for name, line in ((ast.unparse(field.target), field.lineno) for field in fields):
                if name not in read:
                    yield f"{path}:{line}: nothing reads the setting {name}"


def dead_rows(pages: Iterator[Path]) -> Iterator[str]:
    """Yields rows "what happens, decided in, done in" that name no file, or one that is gone."""
    for page in pages:
        lines = [*page.read_text(encoding="utf-8").splitlines(), ""]
        for number, (line, after) in enumerate(pairwise(lines), 1):
            if not line.startswith("| ") or after.startswith("|--"):
                continue
            links = LINK.findall(line)
            gone = [link for link in links if not (page.parent / link).exists()]
            if gone or not links:
                yield f"{page}:{number}: names {', '.join(gone) or 'no file'}"


if __name__ == "__main__":
    main()
