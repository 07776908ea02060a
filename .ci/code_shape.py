"""Checks the shape of the code, and prints what the tree weighs. `make lint` runs it.

It fails where a room weighs more than ADR 0022 allows, a module, class or function is larger than
it allows, a line is longer than 100 columns, a class has more than 20 fields, two classes of the
product share a name, two folders import each other, modules import each other in a circle, or a
module says that it is pure and no import contract covers it.
"""

from __future__ import annotations

import ast
import re
import subprocess
import sys
import tomllib
from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path, PurePosixPath

BUDGET = "docs/adr/0022-half-the-weight.md"
ROOM = re.compile(r"^\| (`[^|]*) \| ([0-9,]+) \|", re.MULTILINE)
SHAPE = re.compile(
    r"module has at most (\d+) lines, a class at most (\d+) public methods, a function at most "
    r"(\d+)\s+lines"
)
LARGER = {
    "grouper/plan/emit.py:plan_records": 56,
    "grouper/plan/scheduler.py:WindowScheduler": 15,
    "searcher/build.py:open_search_plane": 55,
    "searcher/plan/slices.py:SliceTable": 14,
}
"""What is larger than the rules of shape, and may keep this size until it is mended."""
COLUMNS_MAX = 100
CLASS_FIELDS_MAX = 20
PRODUCT = (
    "schemas",
    "producers",
    "grouper",
    "searcher",
    "generator",
    "gateway",
    "indexer",
    "carpool",
    "cli",
)
RECORD_BASES = frozenset({"Record", "Settings"})
"""A class of these has one field for each field on the wire, or for each setting."""
FUNCTIONS = (ast.FunctionDef, ast.AsyncFunctionDef)
FACADES = frozenset({"carpool/__init__.py", "carpool/__main__.py"})
"""These import lazily what is above them: the one exception of the import contract (ADR 0022)."""


@dataclass(frozen=True)
class Module:
    """A parsed Python file. `path` is relative to the root of the tree."""

    path: PurePosixPath
    text: str
    tree: ast.Module

    @property
    def name(self) -> str:
        """The dotted name under which the module is imported."""
        parts = self.path.with_suffix("").parts
        return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)

    @property
    def area(self) -> str:
        """The part of the tree that the file counts for."""
        top = self.path.parts[0]
        return "product" if top in PRODUCT else top


def read_modules(root: Path) -> list[Module]:
    """Returns every Python file that git tracks below `root`."""
    command = ["git", "-C", str(root), "ls-files", "*.py"]
    names = subprocess.run(command, check=True, capture_output=True, text=True).stdout.split()
    modules = []
    for name in names:
        if (root / name).exists():
            text = (root / name).read_text(encoding="utf-8")
            modules.append(Module(PurePosixPath(name), text, ast.parse(text)))
    return modules


def long_lines(modules: list[Module]) -> Iterator[str]:
    """Yields every line that is too long."""
    for module in modules:
        for number, line in enumerate(module.text.splitlines(), 1):
            if len(line) > COLUMNS_MAX:
                yield f"{module.path}:{number}: {len(line)} columns, at most {COLUMNS_MAX}"


def sizes(modules: list[Module]) -> Iterator[tuple[int, str, int, str]]:
    """Yields the size of all modules, classes and functions of the product and of bench.

    As: which rule of `SHAPE`, the name, the size, and its unit.
    """
    for module in _code(modules):
        yield 0, f"{module.path}", len(module.text.splitlines()), "lines"
        for node in ast.walk(module.tree):
            if isinstance(node, ast.ClassDef):
                methods = [each.name for each in node.body if isinstance(each, FUNCTIONS)]
                public = [name for name in methods if not name.startswith("_")]
                yield 1, f"{module.path}:{node.name}", len(public), "public methods"
            elif isinstance(node, FUNCTIONS):
                lines = (node.end_lineno or node.lineno) - node.lineno + 1
                yield 2, f"{module.path}:{node.name}", lines, "lines"


def too_large(modules: list[Module], budget: str) -> Iterator[str]:
    """Yields what is larger than the rules of `budget` allow, and needless entries of `LARGER`."""
    rules = SHAPE.search(budget)
    assert rules is not None, f"{BUDGET} has no rules of shape"
    needless = set(LARGER)
    for rule, name, size, unit in sizes(modules):
        most = int(rules[rule + 1])
        if size > most:
            most = LARGER.get(name, most)
            needless.discard(name)
        if size > most:
            yield f"{name} has {size} {unit}, at most {most} ({BUDGET})"
    yield from (f".ci/code_shape.py: {name} is not larger than the rules" for name in needless)


def heavy_rooms(lines: dict[str, int], budget: str) -> Iterator[str]:
    """Yields the rooms that weigh more than `budget` allows."""
    for room, allowed in room_budgets(budget).items():
        if lines[room] > allowed:
            yield f"{room} has {lines[room]:,} lines, at most {allowed:,} ({BUDGET})"


def room_budgets(budget: str) -> dict[str, int]:
    """Returns the lines that the table of `budget` allows, by room."""
    return {room: int(lines.replace(",", "")) for room, lines in ROOM.findall(budget)}


def room_lines(root: Path, budget: str) -> dict[str, int]:
    """Returns the lines of Python and C++ of each room. A file is of the nearest folder's room."""
    room_of = {name: room for room in room_budgets(budget) for name in re.findall("`(.+?)`", room)}
    command = ["git", "-C", str(root), "ls-files", "*.py", "*.cpp", "*.h"]
    names = subprocess.run(command, check=True, capture_output=True, text=True).stdout.split()
    lines: dict[str, int] = defaultdict(int)
    for path in map(PurePosixPath, names):
        above = [room_of[str(each)] for each in path.parents if str(each) in room_of]
        if above and (root / path).exists():
            lines[above[0]] += len((root / path).read_text(encoding="utf-8").splitlines())
    return lines


def large_classes(modules: list[Module]) -> Iterator[str]:
    """Yields every class of the product and of bench that has too many fields."""
    for module in modules:
        for node in ast.walk(module.tree):
            if module.area == "tests" or not isinstance(node, ast.ClassDef):
                continue
            bases = {base.id for base in node.bases if isinstance(base, ast.Name)}
            if bases & RECORD_BASES:
                continue
            count = len(_fields(node))
            if count > CLASS_FIELDS_MAX:
                yield (
                    f"{module.path}:{node.lineno}: {node.name} has {count} fields, "
                    f"at most {CLASS_FIELDS_MAX}"
                )


def _fields(node: ast.ClassDef) -> set[str]:
    found = {
        each.target.id
        for each in node.body
        if isinstance(each, ast.AnnAssign)
        and isinstance(each.target, ast.Name)
        and "ClassVar" not in ast.unparse(each.annotation)
    }
    for each in ast.walk(node):
        is_stored = isinstance(each, ast.Attribute) and isinstance(each.ctx, ast.Store)
        if is_stored and isinstance(each.value, ast.Name) and each.value.id == "self":
            found.add(each.attr)
    return found


def shared_names(modules: list[Module]) -> Iterator[str]:
    """Yields every name that two top-level classes of the product have, or two of bench."""
    for area in ("product", "bench"):
        places: dict[str, list[str]] = defaultdict(list)
        for module in modules:
            for node in module.tree.body:
                if module.area == area and isinstance(node, ast.ClassDef):
                    places[node.name].append(f"{module.path}:{node.lineno}")
        for name, where in sorted(places.items()):
            if len(where) > 1:
                yield f"{where[0]}: class {name} is also at {', '.join(where[1:])}"


def mutual_imports(modules: list[Module]) -> Iterator[str]:
    """Yields every pair of folders that import each other; a folder and its own subfolders may."""
    folders = {module.name: str(module.path.parent) for module in _code(modules)}
    imports: dict[tuple[str, str], str] = {}
    for module in _code(modules):
        here = str(module.path.parent)
        for name in _imported(module.tree):
            there = folders.get(name, here)
            if there != here:
                imports.setdefault((here, there), f"{module.path} imports {name}")
    for (one, other), example in sorted(imports.items()):
        is_nested = f"{other}/".startswith(f"{one}/") or f"{one}/".startswith(f"{other}/")
        if one < other and not is_nested and (other, one) in imports:
            yield f"{one} and {other} import each other: {example}; {imports[other, one]}"


def circles(modules: list[Module]) -> Iterator[str]:
    """Yields the modules that import each other in circles, also inside functions.

    What no circle contains is taken away: modules that import nothing else that is left, or that
    nothing else that is left imports.
    """
    known = {module.name for module in _code(modules)}
    left = {
        module.name: {name for name in _imported(module.tree) if name in known - {module.name}}
        for module in _code(modules)
    }
    while True:
        imported = {name for names in left.values() for name in names}
        ends = {name for name, names in left.items() if not names or name not in imported}
        if not ends:
            break
        left = {name: names - ends for name, names in left.items() if name not in ends}
    if left:
        yield f"modules import each other in circles: {', '.join(sorted(left))}"


def _code(modules: list[Module]) -> list[Module]:
    return [
        module
        for module in modules
        if module.area in ("product", "bench") and str(module.path) not in FACADES
    ]


def _imported(tree: ast.Module) -> Iterator[str]:
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module:
            yield node.module
            yield from (f"{node.module}.{alias.name}" for alias in node.names)


def unguarded_pure_modules(modules: list[Module], root: Path) -> Iterator[str]:
    """Yields every module that says "Pure." in its docstring and is in no contract for plans."""
    configuration = tomllib.loads((root / "pyproject.toml").read_text(encoding="utf-8"))
    guarded: set[str] = set()
    for contract in configuration["tool"]["importlinter"]["contracts"]:
        if contract["name"].startswith("Plans decide"):
            guarded.update(contract["source_modules"])
    for module in modules:
        says = "Pure." in (ast.get_docstring(module.tree) or "")
        covered = any(module.name == each or module.name.startswith(f"{each}.") for each in guarded)
        if says and not covered and module.area == "product":
            yield f"{module.path}: says that it is pure, and no import contract covers it"


def weights(modules: list[Module], root: Path) -> dict[str, int]:
    """Returns what the tree weighs: lines of each part and of two pages, settings, results."""
    lines: dict[str, int] = defaultdict(int)
    for module in modules:
        lines[f"{module.area}, lines of Python"] += len(module.text.splitlines())
    pages = ("ARCHITECTURE.md", "docs/benchmarks.md")
    settings = (root / "docs/reference/settings.md").read_text(encoding="utf-8")
    return (
        dict(sorted(lines.items()))
        | {f"{page}, lines": len((root / page).read_text().splitlines()) for page in pages}
        | {
            "settings": sum(line.startswith("### ") for line in settings.splitlines()),
            "results, files": len(list((root / "docs/results").glob("*.json"))),
        }
    )


def main() -> int:
    """Prints what the tree weighs and what is wrong; returns the exit status."""
    root = Path(__file__).resolve().parents[1]
    modules, budget = read_modules(root), (root / BUDGET).read_text(encoding="utf-8")
    rooms = room_lines(root, budget)
    for room, allowed in room_budgets(budget).items():
        print(f"{rooms[room]:7,} of {allowed:,} lines: {room}")  # noqa: T201
    product = sum(lines for room, lines in rooms.items() if room not in ("`bench`", "`tests`"))
    print(f"{product:7,} lines: all rooms of the product")  # noqa: T201
    for what, count in weights(modules, root).items():
        print(f"{count:7,} {what}")  # noqa: T201
    problems = [
        *long_lines(modules),
        *too_large(modules, budget),
        *heavy_rooms(rooms, budget),
        *large_classes(modules),
        *shared_names(modules),
        *mutual_imports(modules),
        *circles(modules),
        *unguarded_pure_modules(modules, root),
    ]
    for problem in problems:
        print(problem)  # noqa: T201
    print(f"{len(problems)} problems of shape")  # noqa: T201
    return 1 if problems else 0


if __name__ == "__main__":
    sys.exit(main())
