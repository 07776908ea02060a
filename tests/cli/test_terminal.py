"""No command lets a terminal obey what a record, a manifest or an answer says."""

from __future__ import annotations

import ast
import io
import json
import logging
import re
from collections.abc import Callable
from functools import partial
from pathlib import Path

import msgspec
import pytest
import structlog
from rich.console import Group
from rich.panel import Panel
from rich.table import Table
from rich.text import Text

from carpool.dead_letters.letter import DeadLetter
from carpool.disk.index import open_index
from carpool.disk.manifest import read_manifest, write_manifest
from carpool.telemetry.logs import configure_logs
from carpool.terminal import TerminalConsole, harmless, harmless_json, print_json
from cli.answers import answer_text, citation_lines, timing_line, timing_table
from cli.dlq.showing import count, letter_text, letters_table, reasons_table, topics_table
from cli.status import Status
from cli.status import _print as print_status
from cli.status_values import GroupStatus, Member, Partition, ServiceStatus
from schemas.answer import Answer, AnswerError, Citation, Retrieved
from schemas.record import Source
from tests.cli.support import carpool
from tests.disk.helpers import make_content, write_index

ROOT = Path(__file__).parents[2]
SEQUENCES = (
    "\x1b[2J\x1b]0;title\x07\x1b]8;;http://evil\x1b\\",
    "\x9b31m\x90\x9d52;c;ZXZpbA==\x9c",
    "\r\b\x7f\x00\x0b\x0c\x0e",
    "\u202e\u2066\u061c\u2028\ufeff\U000e0041\ud800",
    "[link=http://evil]x[/link][bold]:skull:",
)
"""Erase the screen, set the title, links; the same with C1 controls; overwrite; reverse; markup."""
HOSTILE = "a" + "".join(SEQUENCES) + "z"
OURS = re.compile(r"\x1b\[[0-9;]*m")
"""What a console of ours may send: colours and bold."""


def unsafe(printed: str) -> set[str]:
    """Returns the characters of `printed` that a terminal may obey."""
    rest = OURS.sub("", printed)
    return {char for char in rest if not char.isprintable() and char != "\n"}


def on_a_terminal(show: Callable[[TerminalConsole], None]) -> str:
    file = io.StringIO()
    show(TerminalConsole(file=file, force_terminal=True, color_system="standard", width=400))
    return file.getvalue()


def print_on(what: object, console: TerminalConsole) -> None:
    console.print(what)


def test_every_control_character_is_escaped_and_words_of_all_scripts_stay() -> None:
    every = "".join(map(chr, range(0x110000)))
    assert unsafe(harmless(every)) <= set("\u200c\u200d") | {c for c in every if c.isspace()}
    assert not unsafe(harmless(HOSTILE))
    for text in ("naïve", "東京\u3000タワー", "می\u200cخواهم", "1\u00a0000 €", "a\nb"):
        assert harmless(text) == text
    assert harmless("\x1b[2J\u202e") == r"\x1b[2J\u202e"


def test_escaped_json_has_the_same_meaning() -> None:
    value = {"a\u009b": "x\u202e\u2028\x7f\U000e0041\n"}
    written = harmless_json(json.dumps(value, ensure_ascii=False, indent=1))
    assert json.loads(written) == value
    assert not unsafe(written)


@pytest.mark.parametrize("sequence", SEQUENCES)
def test_whatever_a_console_prints_is_escaped_and_never_markup(sequence: str) -> None:
    table = Table(sequence, title=sequence)
    table.add_row(sequence)
    for what in (sequence, Text(sequence), table, Group(sequence, Panel(sequence)), {sequence: 1}):
        assert not unsafe(on_a_terminal(partial(print_on, what)))


def hostile_answer(status: str) -> Answer:
    return Answer(
        query_id=HOSTILE,
        status=status,  # type: ignore[arg-type]
        is_final=True,
        replayed=False,
        attempts=1,
        answer=HOSTILE,
        citations=(Citation(n=1, doc_id=HOSTILE, title=HOSTILE + "t"),) if status == "ok" else (),
        retrieved=(Retrieved(id=HOSTILE, score=0.5),),
        timings_ms={HOSTILE: 1.0},
        error=AnswerError(type="expired", message=HOSTILE, retryable=False, stage="searcher"),
    )


@pytest.mark.parametrize("status", ["ok", "partial", "failed"])
def test_an_answer_is_printed_escaped(status: str) -> None:
    answer = hostile_answer(status)
    parts = (answer_text(answer), *citation_lines(answer), timing_line(answer))
    printed = on_a_terminal(lambda console: console.print(*parts, timing_table([answer])))
    assert r"\x1b[2J" in printed
    assert not unsafe(printed)


def test_a_dead_letter_is_printed_escaped() -> None:
    content = HOSTILE.encode("utf-8", "replace")
    letter = DeadLetter(
        place=Source(topic=HOSTILE, partition=0, offset=1, timestamp_ms=5),
        key=content,
        value=content,
        headers=((HOSTILE, content),),
        errors={"exception.class.name": HOSTILE, "exception.message": HOSTILE, HOSTILE: HOSTILE},
    )
    counted = count("t.dlq", [letter], marked=True)
    counted.topic = HOSTILE
    parts = (
        topics_table([counted], 9),
        reasons_table(counted, 9),
        letters_table([letter], 9),
        letter_text(letter),
    )
    assert not unsafe(on_a_terminal(lambda console: console.print(*parts)))


def test_the_status_is_printed_escaped(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("FORCE_COLOR", "1")
    service = ServiceStatus(
        name=HOSTILE,
        address=HOSTILE,
        state=HOSTILE,
        missing=[HOSTILE],
        reads=HOSTILE,
        answers={HOSTILE: 1},
    )
    waiting = Partition(topic=HOSTILE, number=0, waiting=1, member=HOSTILE, has_moved=False)
    member = Member(name=HOSTILE, host=HOSTILE, partitions=[])
    found = Status(
        is_ready=False,
        stuck=[HOSTILE],
        bootstrap=HOSTILE,
        broker_error=HOSTILE,
        topics_missing=[HOSTILE],
        services=[service],
        groups=[GroupStatus(name=HOSTILE, state="x", members=[member], partitions=[waiting])],
        groups_error=HOSTILE,
    )
    print_status(found)
    printed = capsys.readouterr().out
    assert r"\x1b[2J" in printed
    assert not unsafe(printed)


@pytest.mark.parametrize("suffix", ["", " --json"])
def test_the_manifest_of_an_index_is_printed_escaped(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, suffix: str
) -> None:
    monkeypatch.setenv("FORCE_COLOR", "1")
    folder = tmp_path / "index"
    write_index(folder, make_content())
    text = HOSTILE.replace("\ud800", "")
    write_manifest(
        folder,
        msgspec.structs.replace(
            read_manifest(folder),
            index_version=text,
            embedding_model=text,
            embedding_model_name=text,
        ),
    )
    open_index(folder).close()
    shown = carpool(f"index stats {folder}{suffix}")
    assert shown.code == 0
    assert "evil" in shown.stdout
    assert not unsafe(shown.stdout)


@pytest.mark.parametrize("encoding", ["ascii", "latin-1"])
def test_a_terminal_that_lacks_characters_is_sent_escapes(tmp_path: Path, encoding: str) -> None:
    folder, text = tmp_path / "index\udce9", "modèle € 😀"  # a name of a file that is not UTF-8
    write_index(folder, make_content())
    manifest = read_manifest(folder)
    write_manifest(folder, msgspec.structs.replace(manifest, embedding_model_name=text))
    open_index(folder).close()
    shown = carpool(f"index stats {folder}", encoding=encoding)
    assert (shown.code, r"\u20ac \ud83d\ude00" in shown.stdout) == (0, True)
    shown = carpool(f"index stats {folder} --json", encoding=encoding)
    assert (shown.code, shown.json["embedding_model_name"]) == (0, text)
    next(folder.glob("*.seg")).unlink()
    damaged = carpool(f"index verify {folder} --json", encoding=encoding)
    assert (damaged.code, damaged.json["ok"]) == (1, False)


def test_json_on_the_terminal_is_escaped(capsys: pytest.CaptureFixture[str]) -> None:
    print_json({"a": HOSTILE.replace("\ud800", "")})
    printed = capsys.readouterr().out
    assert json.loads(printed)["a"] == HOSTILE.replace("\ud800", "")
    assert not unsafe(printed)


@pytest.mark.parametrize("log_format", ["json", "console"])
def test_a_log_line_is_escaped(log_format: str, capsys: pytest.CaptureFixture[str]) -> None:
    before = structlog.get_config()
    handlers = logging.getLogger().handlers[:]
    try:
        configure_logs(service="s", log_format=log_format)  # type: ignore[arg-type]
        text = HOSTILE.replace("\ud800", "")
        structlog.get_logger("x").warning(text, query_id=text, many=[text])
        logging.getLogger("other").warning("%s", text)
    finally:
        logging.getLogger().handlers[:] = handlers
        structlog.configure(**before)
    printed = capsys.readouterr().err
    assert printed.count("evil") >= 2
    assert not unsafe(printed)


BANNED_CALLS = {"print", "Console", "echo", "secho", "print_exception", "rprint"}
BANNED_NAMES = {"stdout", "stderr", "__stdout__", "__stderr__"}
EXCEPTIONS = {
    "carpool/terminal.py": "prints for all",
    "carpool/telemetry/logs.py": "log lines, escaped there",
}
ALLOWED_LINES = {
    ("cli/dlq/commands.py", "sys.stdout.buffer.write(letter.value)"),  # --raw: the bytes, asked for
    ("cli/dlq/commands.py", "sys.stdout.flush()"),
    (
        "bench/reliability/torn_member.py",
        "structlog.configure(logger_factory=structlog.PrintLoggerFactory(sys.stderr))",
    ),
    ("cli/dlq/commands.py", "logger_factory=lambda *_: structlog.PrintLogger(sys.stderr),"),
    ("cli/main.py", "os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno()"),
    (
        "cli/up.py",
        "stays = sys.stdout.isatty() if exit_after_demo is None else not exit_after_demo",
    ),
}


def prints_of_its_own(path: Path) -> list[str]:
    """Returns the lines of a module that print past `carpool.terminal`."""
    lines = path.read_text().splitlines()
    found = []
    for node in ast.walk(ast.parse(path.read_text())):
        name = ""
        if isinstance(node, ast.Call):
            name = getattr(node.func, "id", getattr(node.func, "attr", ""))
            is_print = name in BANNED_CALLS and not (
                name == "print" and isinstance(node.func, ast.Attribute)
            )
        elif isinstance(node, ast.Attribute):
            is_print = node.attr in BANNED_NAMES and getattr(node.value, "id", "") == "sys"
        else:
            continue
        if is_print:
            found.append(lines[node.lineno - 1].strip())
    return found


def test_no_module_prints_past_the_console_that_escapes() -> None:
    found = [
        (name, line)
        for package in ("cli", "bench", "indexer", "producers", "carpool")
        for path in sorted((ROOT / package).rglob("*.py"))
        if (name := path.relative_to(ROOT).as_posix()) not in EXCEPTIONS
        and not name.startswith("carpool/testing/")
        for line in prints_of_its_own(path)
    ]
    assert [each for each in found if each not in ALLOWED_LINES] == []
