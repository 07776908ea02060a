"""The command line: help with examples, settings with their origin, errors in words, clean JSON."""

from __future__ import annotations

import importlib.metadata
import json
import os
import re
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

from carpool.clock import SystemClock
from carpool.codes.kernel import kernel_in_use
from carpool.errors import ConfigError
from carpool.kafka.deployment import broker_facts
from carpool.kafka.settings import KafkaSettings
from carpool.kafka.topic_reader import read_topic
from carpool.settings import load_settings
from cli.main import EXTRAS, extra_of
from cli.options import Config
from cli.runfile import Run, RunFile
from cli.settings import CarpoolSettings, ClientSide, load, load_client_side
from schemas.codec import decode_query
from schemas.topics import QUERY_TOPICS, TOPICS
from tests.cli.support import Ended, carpool

ROOT = Path(__file__).parents[2]
SETTINGS = "[grouper]\npolicy = 'greedy'\nnprobe = 3\n[kafka]\nbootstrap = 'k:1'\n"
NOWHERE = "--bootstrap 127.0.0.1:1"
SHORT = "--set kafka.request_timeout_ms=1000"
COMMANDS = (
    *("up", "ask", "publish", "cancel", "eval", "status", "config"),
    *("grouper", "searcher", "generator", "indexer"),
    *("topics create", "topics check"),
    *("workflows show", "workflows check"),
    *("dlq list", "dlq show", "dlq replay", "dlq drop", "index build", "bench claims"),
)


@pytest.mark.parametrize("command", COMMANDS)
def test_the_help_of_a_command_shows_an_example(command: str) -> None:
    shown = carpool(f"{command} -h")
    assert shown.code == 0
    assert f"carpool {command}" in shown.stdout


def test_the_option_version_prints_the_version_and_what_scans_codes() -> None:
    version = f"carpool {importlib.metadata.version('carpool')}"
    lines = [version, f"codes are scanned by {kernel_in_use()}"]
    shown = carpool("--version")
    assert (shown.code, shown.stdout.splitlines()) == (0, lines)


def test_every_package_of_the_services_is_known_by_the_extra_that_brings_it() -> None:
    with (ROOT / "pyproject.toml").open("rb") as file:
        extras = tomllib.load(file)["project"]["optional-dependencies"]
    wanted = {re.split(r"[><=]", each)[0] for each in extras["services"]}
    modules = {
        module
        for module, names in importlib.metadata.packages_distributions().items()
        if wanted & set(names)
    }
    unknown = {each for each in modules if not each.startswith("_") and extra_of(each) is None}
    assert unknown <= {"torchgen", "functorch"}


def test_a_disk_that_takes_nothing_is_one_line_that_says_what_to_do(tmp_path: Path) -> None:
    assert (
        carpool(f"index build {_corpus(tmp_path)} --out {tmp_path}/i --model hashing:64").code == 0
    )
    refused = carpool(
        f"up --index {tmp_path}/i --set llm.engine=none --set embedding.model=hashing:64"
        f" --state-dir /sys/carpool-{os.getpid()}"  # another run on this machine has another
    )
    assert refused.code == 2
    assert "cannot write /sys/carpool" in refused.stderr and "--state-dir" in refused.stderr
    assert len(refused.stderr.splitlines()) == 1


def _corpus(folder: Path) -> Path:
    corpus = folder / "corpus.jsonl"
    corpus.write_text('{"id": "a", "title": "t", "text": "x y z"}\n')
    return corpus


def test_help_and_settings_need_none_of_the_services_packages() -> None:
    heavy = tuple(" ".join(EXTRAS.values()).split())
    listed = f"print([name for name in {heavy!r} if name in sys.modules])"
    code = f"import sys, cli.main; {listed}"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, cwd=ROOT)
    assert done.stdout.strip() == "[]", done.stderr


def test_a_missing_package_is_named_with_the_extra_that_brings_it(tmp_path: Path) -> None:
    # As on a base install: importing NumPy fails as if it were not there.
    (tmp_path / "sitecustomize.py").write_text("import sys\nsys.modules['numpy'] = None\n")
    done = subprocess.run(
        [sys.executable, "-m", "carpool", "searcher"],
        env=os.environ | {"PYTHONPATH": f"{tmp_path}{os.pathsep}{ROOT}"},
        capture_output=True,
        text=True,
    )
    assert (done.returncode, done.stdout) == (2, "")
    assert "needs numpy" in done.stderr and "pip install 'carpool[services]'" in done.stderr
    assert "Traceback" not in done.stderr
    assert extra_of("torch.nn") == "services"
    assert extra_of("carpool.nothing") is None


@pytest.mark.parametrize(
    ("line", "words"),
    [
        ("grouper --set grouper.policy", "section.name=value"),
        ("grouper --set nothing.policy=greedy", "there is no section 'nothing'"),
        ("grouper --set grouper.polici=none", "has no 'polici'"),
        ("grouper --set grouper.window_queries_max=0", "window_queries_max"),
        ("generator --set llm.api_key=abc", "CARPOOL_LLM_API_KEY only"),
        ("grouper --config missing.toml", "there is no settings file missing.toml"),
        ("up --bootstrap embedded", "there is no index at .carpool/index"),
        ("up --demo missing.txt", "missing.txt"),
        ("publish a --timeout 3", "No such option"),
        ("index no-such-command", "No such command"),
        ("bench no-such-command", "No such command"),
    ],
)
def test_what_must_be_changed_first_is_said_with_exit_code_two(line: str, words: str) -> None:
    ended = carpool(line)
    assert (ended.code, ended.stdout) == (2, "")
    assert words in " ".join(ended.stderr.split())


@pytest.mark.parametrize("command", ["ask ?", "dlq replay --all", "topics create", "topics check"])
def test_without_a_broker_every_command_says_the_same_with_exit_code_one(command: str) -> None:
    ended = carpool(f"{command} {NOWHERE} {SHORT}")
    assert (ended.code, ended.stdout) == (1, "")
    says = " ".join(ended.stderr.split())
    assert says.startswith("error: no broker answers at 127.0.0.1:1: ")
    assert "carpool up" in says and "--bootstrap" in says


def test_status_without_a_broker_is_exit_code_one_and_json_of_what_is_down() -> None:
    ended = carpool(f"status --json {NOWHERE} --url grouper=127.0.0.1:1 {SHORT}")
    assert (ended.code, ended.json["is_ready"], ended.json["topics_missing"]) == (1, False, None)
    assert "no broker answers at 127.0.0.1:1" in ended.json["broker_error"]
    (service,) = ended.json["services"]
    assert (service["name"], service["state"]) == ("grouper", "down")


def test_topics_are_made_and_checked_and_questions_are_published_and_counted(
    embedded_bootstrap: str,
) -> None:
    at = f"--bootstrap {embedded_bootstrap} --set kafka.prefix=made"
    refused = carpool(f"topics check {at} --json")
    assert refused.code == 1
    assert any("rag.queries.v1 does not exist" in each for each in refused.json["problems"])

    made = carpool(f"topics create {at} --partitions 3 --json")
    assert made.json["created"] == sorted(f"made.{topic.name}" for topic in TOPICS)
    assert carpool(f"topics create {at} --json").json["created"] == []
    found = broker_facts(KafkaSettings(bootstrap=embedded_bootstrap), (), "g", ()).topics
    topics = ("made.rag.queries.v1", "made.rag.groups.v1")
    assert [found[name].partitions for name in topics] == [3, 1]
    fits = carpool(f"topics check {at} --json")
    assert (fits.code, fits.json["problems"], fits.json["delivery"]) == (0, [], "at_least_once")
    assert fits.json["transactions"] is False
    assert "at least once; nothing is lost" in carpool(f"topics check {at}").stdout

    blank = carpool(f"ask ' ' {at}")
    assert (blank.code, blank.stdout) == (1, "") and "blank" in blank.stderr
    unanswered = carpool(f"ask anybody? --timeout 1.5 {at} --json")
    assert (unanswered.code, unanswered.stdout) == (1, "")
    assert "carpool status" in unanswered.stderr
    published = carpool(f"publish who? --id q-1 {at} --json")
    assert published.json == {"query_id": "q-1", "text": "who?"}
    assert carpool(f"cancel q-1 never-asked {at}").stdout == "q-1\nnever-asked\n"
    assert carpool(f"cancel q-1 {at} --json").json == {"query_id": "q-1"}
    nameless = carpool(f"cancel '' {at}")
    assert (nameless.code, nameless.stdout) == (1, "") and "query_id" in nameless.stderr


BAD_LINES = (b"caf\xe9?", b"x" * 300_000, b"a\0b")


def ids_of(ended: Ended) -> dict[str, str]:
    lines = map(json.loads, ended.stdout.splitlines())
    return {line["text"]: line["query_id"] for line in lines}


def published_texts(bootstrap: str, prefix: str) -> list[str | None]:
    kafka = KafkaSettings(bootstrap=bootstrap, prefix=prefix)
    return [
        decode_query(message.value, message.headers, message.source).text
        for topic in QUERY_TOPICS
        for message in read_topic(kafka, SystemClock(), topic, name="test")
    ]


def test_a_bad_line_is_skipped_and_named(
    embedded_bootstrap: str,
) -> None:
    texts = [f"question {number}?" for number in range(150)]
    lines = [b"\xef\xbb\xbfquestion 0?", *BAD_LINES, b"", *(t.encode() for t in texts[1:])]
    at = f"--bootstrap {embedded_bootstrap} --set kafka.prefix=lines"
    carpool(f"topics create {at}")
    first = carpool(f"publish - --batch {at} --json", stdin=b"\n".join(lines[:60]))
    assert first.code == 1
    skipped = [line.split(":")[0] for line in first.stderr.splitlines()]
    assert skipped == [f"line {number} is skipped" for number in (2, 3, 4)]
    assert "not UTF-8" in first.stderr and "NUL" in first.stderr
    ids = ids_of(first)
    assert list(ids) == texts[:56]
    published = published_texts(embedded_bootstrap, "lines")
    assert sorted(filter(None, published)) == sorted(texts[:56])


def test_a_bad_graph_is_refused_once_and_not_for_each_line(
    embedded_bootstrap: str, tmp_path: Path
) -> None:
    graph = tmp_path / "graph.json"
    graph.write_text('{"nodes": [], "edges": []}')
    at = f"--bootstrap {embedded_bootstrap}"
    refused = carpool(f"publish - --workflow {graph} {at}", stdin=b"who?\nwhere?\n")
    assert (refused.code, refused.stderr.count("workflow.graph.nodes")) == (1, 1)


def test_text_that_is_not_well_formed_is_published_and_never_a_traceback(
    embedded_bootstrap: str,
) -> None:
    at = f"--bootstrap {embedded_bootstrap} --set kafka.prefix=odd"
    carpool(f"topics create {at}")
    published = carpool(f"publish caf\udce9? --id \udce9 {at} --json")
    assert published.json == {"query_id": "\ufffd", "text": "caf\ufffd?"}
    assert carpool(f"cancel \udce9 {at}").stdout == "\ufffd\n"
    assert published_texts(embedded_bootstrap, "odd") == ["caf\ufffd?"]
    utf16 = carpool(f"publish - {at}", stdin="who?\n".encode("utf-16"))
    assert (utf16.code, "iconv -f UTF-16" in utf16.stderr) == (2, True)
    parquet = carpool(f"publish - {at}", stdin=b"PAR1\x15\x04\x15\0")
    assert parquet.code == 2 and "is Parquet" in parquet.stderr
    assert "read_parquet" in parquet.stderr.replace("\n", "")
    assert carpool(f"publish - {at}", stdin=b"\n") == Ended(0, "", "")
    closed = f"{sys.executable} -m carpool publish - {at} <&-"
    assert subprocess.run(closed, shell=True, cwd=ROOT).returncode == 0
    assert carpool("config --json --set kafka.bootstrap=h\udce9:1").code == 0
    unknown = carpool(f"status {NOWHERE} {SHORT} --url grouper=h\udce9:1 --json")
    assert unknown.json["is_ready"] is False


def test_config_shows_each_value_with_where_it_came_from(monkeypatch: pytest.MonkeyPatch) -> None:
    Path("carpool.toml").write_text(SETTINGS)
    monkeypatch.setenv("CARPOOL_GROUPER_NPROBE", "9")
    shown = carpool("config grouper --json --config carpool.toml --set grouper.window_ms_max=7")
    found = {each["name"]: (each["value"], each["origin"]) for each in shown.json}
    assert found["policy"] == ("greedy", "file (carpool.toml)")
    assert found["nprobe"] == (9, "environment (CARPOOL_GROUPER_NPROBE)")
    assert found["window_ms_max"] == (7, "flag")
    assert found["horizon_windows"] == (4, "default")


def test_settings_may_come_through_a_pipe_as_a_shell_substitutes_it() -> None:
    reading, writing = os.pipe()
    os.write(writing, b"[grouper]\nnprobe = 3\n")
    os.close(writing)
    assert (
        load(CarpoolSettings, Config(config=Path(f"/dev/fd/{reading}")).given()).grouper.nprobe == 3
    )
    os.close(reading)


def test_the_toml_that_config_prints_is_a_settings_file_of_the_same_settings() -> None:
    chosen = ["grouper.policy=greedy", 'index.dir=a "b"']
    printed = carpool(f"config --set {chosen[0]} --set 'index.dir=a \"b\"'").stdout
    assert tomllib.loads(printed)["grouper"] == {"policy": "greedy"}
    everything = "\n".join(
        line.removeprefix("# ")
        if " = " in line and line.startswith("# ") and line.split()[1].isidentifier()
        else line
        for line in printed.splitlines()
    )
    Path("printed.toml").write_text(everything)
    settings = load_settings(CarpoolSettings, file=Path("printed.toml"), environ={})
    assert settings == load(CarpoolSettings, Config(assignments=chosen).given())


def test_client_commands_ignore_the_sections_of_services_and_refuse_unknown_ones() -> None:
    Path("carpool.toml").write_text(SETTINGS)
    settings = load(
        ClientSide,
        Config(config=Path("carpool.toml"), assignments=["searcher.scoring_threads=2"]).given(),
    )
    assert settings.kafka.bootstrap == "k:1"
    Path("carpool.toml").write_text("[gruoper]\npolicy = 'greedy'\n")
    with pytest.raises(ConfigError, match="gruoper"):
        load(ClientSide, Config(config=Path("carpool.toml")).given())


def test_client_commands_find_a_running_carpool_up_unless_brokers_are_named(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    run_file = RunFile(Path(".carpool/run"))
    run_file.write(Run(pid=os.getpid(), bootstrap="127.0.0.1:5", http={}))
    assert load_client_side(Config().given(), ClientSide).kafka.bootstrap == "127.0.0.1:5"
    assert (
        load_client_side(Config().given(kafka={"bootstrap": "b:1"}), ClientSide).kafka.bootstrap
        == "b:1"
    )
    monkeypatch.setenv("CARPOOL_KAFKA_BOOTSTRAP", "e:1")
    assert load_client_side(Config().given(), ClientSide).kafka.bootstrap == "e:1"


def test_the_file_of_a_dead_run_counts_as_absent() -> None:
    dead = subprocess.Popen([sys.executable, "-c", ""])
    dead.wait()
    run_file = RunFile(Path(".carpool/run"))
    run_file.write(Run(pid=dead.pid, bootstrap="127.0.0.1:5", http={}))
    assert run_file.read() is None
    run_file.path.write_text("{not json")
    assert run_file.read() is None
    run_file.remove()
    run_file.remove()


def test_a_shell_can_complete_commands(monkeypatch: pytest.MonkeyPatch) -> None:
    assert "--install-completion" in carpool("--help").stdout
    monkeypatch.setenv("_CARPOOL_COMPLETE", "complete_bash")
    monkeypatch.setenv("COMP_WORDS", "carpool to")
    monkeypatch.setenv("COMP_CWORD", "1")
    assert "topics" in carpool("").stdout
