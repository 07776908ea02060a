"""Prints which files of the product a plain question enters, and how many lines they have.

Starts the services with a stand-in for the LLM on an embedded broker, and asks a few questions. The
files in which the last one makes a call are listed, those of the waiting loops included.
`python .ci/question_path.py`, from the root of the tree.
"""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))

from bench.core.embedded_broker import EmbeddedBroker  # noqa: E402
from bench.core.stack import Stack  # noqa: E402
from carpool.kafka.admin import create_topics  # noqa: E402
from carpool.kafka.settings import KafkaSettings  # noqa: E402
from tests.e2e.support import build_index, quick_settings  # noqa: E402

WATCH = """
import atexit, os, sys, threading, time
folder, seen = os.environ["QUESTION_PATH"], set()
IS_FUNCTION = 1
def note(frame, event, argument):
    if event == "call" and frame.f_code.co_flags & IS_FUNCTION:
        name = frame.f_code.co_filename
        if name.endswith("producers/client.py") and name not in seen:
            seen.clear()  # `carpool ask` begins here
        seen.add(name)
def watch():
    while not os.path.exists(folder + "/begin"):
        time.sleep(0.05)
    seen.clear()
    while not os.path.exists(folder + "/end"):
        time.sleep(0.05)
    dump()
def dump():
    with open(folder + f"/{os.getpid()}.seen", "w") as file:
        file.write("\\n".join(set(seen)))
if "ask" in sys.argv:
    atexit.register(dump)
sys.setprofile(note)
threading.setprofile(note)
threading.Thread(target=watch, daemon=True).start()
"""
WARM_UP = 5
PRODUCT = ("schemas", "producers", "grouper", "searcher", "generator", "carpool")


def ask(bootstrap: str, number: int) -> None:
    """Asks a question, and waits for its answer."""
    command = [sys.executable, "-m", "carpool", "ask", f"what of the comet {number}?"]
    subprocess.run([*command, "--bootstrap", bootstrap], check=True, stdout=subprocess.DEVNULL)


def entered(folder: Path) -> list[Path]:
    """Returns the files of the product in which any process made a call."""
    names = {name for file in folder.glob("*.seen") for name in file.read_text().splitlines()}
    inside = (Path(name) for name in names if name.startswith(f"{ROOT}/"))
    return sorted(
        path
        for path in inside
        if path.relative_to(ROOT).parts[0] in PRODUCT and path.parent.name != "testing"
    )


def main() -> int:
    """Prints the files; returns the exit status."""
    with tempfile.TemporaryDirectory() as work:
        folder = Path(work)
        (folder / "sitecustomize.py").write_text(WATCH)
        os.environ |= {"QUESTION_PATH": work, "PYTHONPATH": f"{work}:{ROOT}"}
        index = build_index(folder, has_codes=True)
        with EmbeddedBroker(log_file=folder / "broker.log") as broker:
            create_topics(KafkaSettings(bootstrap=broker.bootstrap))
            with Stack(
                bootstrap=broker.bootstrap,
                index_dir=index,
                work_dir=folder / "logs",
                settings=quick_settings(),
            ):
                for number in range(WARM_UP):
                    ask(broker.bootstrap, number)
                (folder / "begin").touch()
                time.sleep(0.2)
                ask(broker.bootstrap, WARM_UP)
                (folder / "end").touch()
                time.sleep(0.5)
        files = entered(folder)
    lines = {path: len(path.read_text().splitlines()) for path in files}
    for path, count in lines.items():
        print(f"{count:6,} {path.relative_to(ROOT)}")  # noqa: T201
    print(f"{sum(lines.values()):6,} lines in {len(files)} files")  # noqa: T201
    return 0


if __name__ == "__main__":
    sys.exit(main())
