"""The priority of an indexer, in a process with a session of its own."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

SEEN = """
import os, threading
from indexer.priority import lower_priority
lower_priority()
seen = []
thread = threading.Thread(target=lambda: seen.append(os.nice(0)))
thread.start(); thread.join()
print(*seen, open("/proc/self/autogroup").read().split()[-1])
"""


@pytest.mark.skipif(not Path("/proc/self/autogroup").exists(), reason="sessions have no priority")
def test_threads_and_session_of_an_indexer_have_a_low_priority() -> None:
    command = [sys.executable, "-c", SEEN]
    found = subprocess.run(command, start_new_session=True, capture_output=True, check=True)
    assert found.stdout.split() == [b"10", b"10"]
