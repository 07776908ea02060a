"""What a test needs is its marker; what this machine lacks is said once, in one line each, at the
end.

`CARPOOL_REQUIRE="kafka,data"` names what must be there: a test skipped for want of it fails the
run. `.ci/run` sets it to everything that it has.
"""

from __future__ import annotations

import functools
import importlib.util
import os
import shutil
import tempfile
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import hypothesis
import pytest
import structlog

from carpool.disk.direct import IN_MEMORY, file_system
from tests import transcripts
from tests.transcripts import Execute

pytest_plugins = ["tests.brokers"]

# No test fails for being slow: machines are noisy, and time is what benchmarks are for.
hypothesis.settings.register_profile("carpool", deadline=None)
hypothesis.settings.load_profile("carpool")

ROOT = Path(__file__).resolve().parent.parent
DEFAULT_LLM_MODEL = ROOT / ".carpool" / "models" / "smollm2-135m-instruct"


def _lacks_kafka() -> str | None:
    home = os.environ.get("KAFKA_HOME")
    if not home:
        return "KAFKA_HOME is not set"
    if not any(Path(home, "libs").glob("*.jar")):
        return f"KAFKA_HOME={home} has no libs/*.jar"
    return None if shutil.which("java") else "there is no java on the PATH"


def _lacks_data() -> str | None:
    folder = os.environ.get("CARPOOL_DATA")
    if not folder:
        return "CARPOOL_DATA is not set"
    return None if Path(folder).is_dir() else f"CARPOOL_DATA={folder} is not a folder"


def _lacks_vllm() -> str | None:
    if importlib.util.find_spec("vllm") is None:
        return "vLLM is not installed (make setup-vllm)"
    model = Path(os.environ.get("CARPOOL_TEST_MODEL") or DEFAULT_LLM_MODEL)
    is_there = (model / "config.json").is_file()
    return None if is_there else f"{model} is not a model folder (make setup-vllm)"


def _lacks_compose() -> str | None:
    parser = os.environ.get("CARPOOL_COMPOSE_CONFIG")
    if not parser:
        return "CARPOOL_COMPOSE_CONFIG is not set"
    return (
        None if os.access(parser, os.X_OK) else f"CARPOOL_COMPOSE_CONFIG={parser} is not executable"
    )


def _lacks_gpu() -> str | None:
    if not any(Path("/dev").glob("nvidia[0-9]*")):
        return "there is no CUDA device"
    import torch

    return None if torch.cuda.is_available() else "this torch sees no CUDA device"


NEEDS: dict[str, Callable[[], str | None]] = {
    "compose": functools.cache(_lacks_compose),
    "data": functools.cache(_lacks_data),
    "gpu": functools.cache(_lacks_gpu),
    "kafka": functools.cache(_lacks_kafka),
    "vllm": functools.cache(_lacks_vllm),
}
TAKES = {"slow": "take up to a minute or two", "long": "take some minutes each, or try more cases"}
WAITS_S = {"kafka": 2, "long": 60, "slow": 5, "vllm": 20}
"""About how long a test with this mark waits for brokers, processes and models."""
START_S = 15
"""About how long the first of them in a file waits for them to start."""
IMPORT_VLLM = (
    "tests/generator/test_pgdsf.py",
    "tests/bench/simulator/test_prompt_cache.py",
    "tests/bench/papers/test_ragcache.py",
)
"""Their process imports vLLM, which takes 15 seconds."""
_REASONS = pytest.StashKey[dict[str, str]]()
_SKIPPED = pytest.StashKey[Counter[str]]()
_SKIPPED_OTHERWISE = pytest.StashKey[Counter[str]]()


def _required() -> set[str]:
    names = {
        name.strip() for name in os.environ.get("CARPOOL_REQUIRE", "").split(",") if name.strip()
    }
    unknown = names - {*NEEDS, *TAKES}
    if unknown:
        raise pytest.UsageError(
            f"CARPOOL_REQUIRE names what no test needs: {', '.join(sorted(unknown))}"
        )
    return names


def pytest_addoption(parser: pytest.Parser) -> None:
    for name, takes in TAKES.items():
        parser.addoption(
            f"--run-{name}",
            action="store_true",
            help=f"also run the tests that {takes} (CARPOOL_RUN_{name.upper()}=1)",
        )
    parser.addoption("--rewrite", action="store_true", help="renew the output of transcript tests")


def _keep_temporary_files_on_a_disk() -> None:
    """Where /tmp lies in memory, takes /var/tmp: a searcher refuses an index that is on no disk."""
    if file_system(tempfile.gettempdir()) in IN_MEMORY:
        tempfile.tempdir = os.environ["TMPDIR"] = "/var/tmp"


def pytest_configure(config: pytest.Config) -> None:
    _required()
    _keep_temporary_files_on_a_disk()
    config.stash[_REASONS] = {}
    config.stash[_SKIPPED] = Counter()
    config.stash[_SKIPPED_OTHERWISE] = Counter()
    config.pluginmanager.register(ReportBook(config))


def _lacking(item: pytest.Item) -> tuple[str, str] | None:
    """The first thing that `item` needs and this run has not, with the reason."""
    for name, lacks in NEEDS.items():
        if item.get_closest_marker(name) and (reason := lacks()):
            return name, reason
    for name in TAKES:
        asked = (
            item.config.getoption(f"--run-{name}")
            or os.environ.get(f"CARPOOL_RUN_{name.upper()}") == "1"
        )
        if item.get_closest_marker(name) and not asked:
            return name, f"--run-{name} was not given"
    return None


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> Any:
    """With files as units: those that import vLLM are one unit."""
    from xdist.scheduler import LoadFileScheduling

    class Scheduling(LoadFileScheduling):
        def _split_scope(self, nodeid: str) -> str:
            file: str = super()._split_scope(nodeid)
            return IMPORT_VLLM[0] if file in IMPORT_VLLM else file

    return Scheduling(config, log) if config.getoption("dist") == "loadfile" else None


def _mix(items: list[pytest.Item]) -> None:
    """Orders files: those that wait with those that compute, and the longest of both first.

    So the cores are busy, and no worker is left alone with a long file.
    """
    waits_s, tests = Counter[Path](), Counter(item.path for item in items)
    for item in items:
        if not _lacking(item):
            marks = [name for name in WAITS_S if item.get_closest_marker(name)]
            start_s = START_S if marks and not waits_s[item.path] else 0
            waits_s[item.path] += start_s + sum(WAITS_S[name] for name in marks)
    place: dict[Path, float] = {}
    for takes in (+waits_s, Counter({path: n for path, n in tests.items() if not waits_s[path]})):
        before = 0
        for path, size in takes.most_common():
            place[path] = before / takes.total()
            before += size
    items.sort(key=lambda item: place[item.path])


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    if hasattr(config, "workerinput"):  # one of several workers, which get files in this order
        _mix(items)
    for item in items:
        # Keywords would not do: they hold the names of folders too, and one is called kafka.
        item.user_properties += [("needs", name) for name in NEEDS if item.get_closest_marker(name)]
        if lacking := _lacking(item):
            name, reason = lacking
            item.add_marker(pytest.mark.skip(reason=f"{name}: {reason}"))


def _first_line(report: pytest.TestReport) -> str:
    crash = getattr(report.longrepr, "reprcrash", None)
    lines = str(crash.message if crash else report.longrepr).strip().splitlines()
    return lines[0] if lines else ""


class ReportBook:
    """Says what failed, counts what was skipped by the need that it has; reports come here from
    every worker process too.
    """

    def __init__(self, config: pytest.Config) -> None:
        self._config = config

    @pytest.hookimpl(trylast=True)
    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        """Names a failure at once: a run that is cut off never comes to its end. Notes a skipped
        test, also where the test itself decided to skip; what it needs travels with its report.
        """
        if report.failed and (
            terminal := self._config.pluginmanager.get_plugin("terminalreporter")
        ):
            terminal.write_line(
                f"\nFAILED {report.nodeid} ({report.when}): {_first_line(report)}", red=True
            )
        if not report.skipped or hasattr(report, "wasxfail"):
            return
        assert isinstance(report.longrepr, tuple), "a skip says where and why"
        reason = report.longrepr[-1].removeprefix("Skipped: ")
        lacking = next((name for name in (*NEEDS, *TAKES) if reason.startswith(f"{name}: ")), None)
        names = (
            [lacking]
            if lacking
            else [str(name) for key, name in report.user_properties if key == "needs"]
        )
        for name in names:
            self._config.stash[_SKIPPED][name] += 1
            self._config.stash[_REASONS].setdefault(name, reason.removeprefix(f"{name}: "))
        if not names:
            self._config.stash[_SKIPPED_OTHERWISE][reason] += 1


@pytest.fixture
def check_transcript(pytestconfig: pytest.Config) -> Callable[[Path, Execute], None]:
    """See `tests.transcripts.check_transcript`; renews the file under `--rewrite`."""
    rewrite = bool(pytestconfig.getoption("--rewrite"))
    return functools.partial(transcripts.check_transcript, rewrite=rewrite)


@pytest.fixture
def memory_folder() -> Iterator[Path]:
    """A folder whose files are in memory and on no disk."""
    shared = Path("/dev/shm")
    if not (shared.is_mount() and os.access(shared, os.W_OK)):
        pytest.skip("no tmpfs at /dev/shm")
    with tempfile.TemporaryDirectory(dir=shared) as name:
        yield Path(name)


def _missed(config: pytest.Config) -> list[str]:
    return sorted(_required() & {name for name, count in config.stash[_SKIPPED].items() if count})


def pytest_sessionfinish(session: pytest.Session, exitstatus: int) -> None:
    if _missed(session.config) and exitstatus in (
        pytest.ExitCode.OK,
        pytest.ExitCode.NO_TESTS_COLLECTED,
    ):
        session.exitstatus = pytest.ExitCode.TESTS_FAILED


def pytest_terminal_summary(
    terminalreporter: pytest.TerminalReporter, config: pytest.Config
) -> None:
    lines = [
        (f"{name}: ", count, config.stash[_REASONS][name])
        for name, count in sorted(config.stash[_SKIPPED].items())
    ]
    lines += [
        ("", count, reason) for reason, count in sorted(config.stash[_SKIPPED_OTHERWISE].items())
    ]
    for what, count, reason in lines:
        terminalreporter.write_line(
            f"{what}{count} test{'s' * (count > 1)} skipped: {reason}", yellow=True
        )
    for name in _missed(config):
        terminalreporter.write_line(
            f"FAILED: CARPOOL_REQUIRE names {name}, and its tests were skipped", red=True
        )


@pytest.fixture(autouse=True)
def _logs_as_before() -> Iterator[None]:
    """Restores the configuration of logs that a command of a test sets."""
    before = structlog.get_config()
    yield
    structlog.configure(**before)
