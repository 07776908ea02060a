"""No command lets a terminal obey what a record, a manifest or an answer says."""

from __future__ import annotations

import io
import json
import logging
import re
from itertools import product
from pathlib import Path

import msgspec
import pytest
import structlog
from rich.console import Group
from rich.panel import Panel
from rich.table import Table
from rich.text import Text

from carpool.dead_letters.letter import DeadLetter
from carpool.disk.manifest import read_manifest, write_manifest
from carpool.telemetry.logs import configure_logs
from carpool.terminal import TerminalConsole, harmless, harmless_json
from cli.answers import answer_text, evidence_lines, timing_line, timing_table
from cli.letters import count, letter_text, letters_table, reasons_table, topics_table
from cli.status import Status
from cli.status import _print as print_status
from cli.status_verdict import GroupStatus, Member, Partition, ServiceStatus
from schemas.answer import AnswerError, Citation, Retrieved
from schemas.record import Source
from tests.cli.support import carpool
from tests.disk.helpers import make_content, write_index
from tests.records import an_answer

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


def on_a_terminal(*parts: object) -> str:
    file = io.StringIO()
    console = TerminalConsole(file=file, force_terminal=True, color_system="standard", width=400)
    console.print(*parts)
    return file.getvalue()


def test_every_control_character_is_escaped_and_words_of_all_scripts_stay() -> None:
    every = "".join(map(chr, [*range(0x3000), *range(0xD800, 0x10400), *range(0xE0000, 0xE0200)]))
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
        assert not unsafe(on_a_terminal(what))


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
    assert not unsafe(on_a_terminal(*parts))


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


def test_an_answer_is_printed_escaped() -> None:
    error = AnswerError(type="expired", message=HOSTILE, retryable=False, stage="searcher")
    cited = (Citation(n=1, doc_id=HOSTILE, title=HOSTILE + "t"),)
    for status, citations in (("ok", cited), ("failed", ())):
        answer = an_answer(
            HOSTILE,
            status,
            answer=HOSTILE,
            citations=citations,
            retrieved=(Retrieved(id=HOSTILE, score=0.5),),
            timings_ms={HOSTILE: 1.0},
            error=error,
        )
        parts = (answer_text(answer), *evidence_lines(answer), timing_line(answer))
        printed = on_a_terminal(*parts, timing_table([answer]))
        assert r"\x1b[2J" in printed
        assert not unsafe(printed)


def test_a_manifest_is_printed_escaped_also_where_a_terminal_lacks_characters(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("FORCE_COLOR", "1")
    folder, foreign = tmp_path / "index\udce9", "modèle € 😀"  # a file name that is not UTF-8
    write_index(folder, make_content())
    text = foreign + HOSTILE.replace("\ud800", "")
    named = dict.fromkeys(("index_version", "embedding_model", "embedding_model_name"), text)
    write_manifest(folder, msgspec.structs.replace(read_manifest(folder), **named))
    for suffix, encoding in product(("", " --json"), ("utf-8", "ascii")):
        shown = carpool(f"index stats {folder}{suffix}", encoding=encoding)
        assert (shown.code, "evil" in shown.stdout) == (0, True)
        assert not unsafe(shown.stdout)
        assert (r"\u20ac" in shown.stdout) is (encoding == "ascii")
        if suffix:
            assert shown.json["embedding_model_name"] == text
    next(folder.glob("*.seg")).unlink()
    damaged = carpool(f"index verify {folder} --json", encoding="ascii")
    assert (damaged.code, damaged.json["ok"]) == (1, False)


def test_a_log_line_is_escaped_and_names_no_password(capsys: pytest.CaptureFixture[str]) -> None:
    before, handlers = structlog.get_config(), logging.getLogger().handlers[:]
    try:
        configure_logs(service="s")
        text = HOSTILE.replace("\ud800", "") + " http://name:sesame@10.0.0.1/v1"
        structlog.get_logger("x").warning(text, query_id=text, many=[text])
        logging.getLogger("other").warning("%s", text)
    finally:
        logging.getLogger().handlers[:] = handlers
        structlog.configure(**before)
    printed = capsys.readouterr().err
    assert printed.count("evil") >= 2
    assert not unsafe(printed)
    assert printed.count("http://name:********@10.0.0.1/v1") == 4
    assert "sesame" not in printed


PRINTS = re.compile(
    r"(?<![\w.])(print|rprint)\(|\b(Console|echo|secho|print_exception)\(|sys\.(__)?std(out|err)\b"
)
EXCEPTIONS = {
    "carpool/terminal.py",  # prints for all
    "carpool/telemetry/logs.py",  # log lines, escaped there
    "carpool/foreign_files.py",  # in a command that a user is told
    "producers/client.py",  # in an example
    "bench/papers/hedrarag/baselines.py",  # JSON to the process that started it
}
ALLOWED_LINES = {
    ("cli/dlq.py", "sys.stdout.buffer.write(letter.value)"),  # --raw: the bytes, asked for
    ("cli/dlq.py", "sys.stdout.flush()"),
    ("cli/console.py", "logger_factory=lambda *_: structlog.PrintLogger(sys.stderr),"),
    ("cli/main.py", "os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())"),
    ("cli/up.py", "stays = sys.stdout.isatty() if ends is None else not ends"),
}


def test_no_module_prints_past_the_console_that_escapes() -> None:
    found = {
        (name, line.strip())
        for package in ("cli", "bench", "indexer", "producers", "carpool")
        for path in (ROOT / package).rglob("*.py")
        if (name := path.relative_to(ROOT).as_posix()) not in EXCEPTIONS
        and not name.startswith("carpool/testing/")
        for line in path.read_text().splitlines()
        if PRINTS.search(line)
    }
    assert found - ALLOWED_LINES == set()
