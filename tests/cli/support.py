"""Runs a command of `carpool` as a user types it, in this process."""

from __future__ import annotations

import io
import json
import shlex
import sys
from contextlib import redirect_stderr, redirect_stdout
from dataclasses import dataclass
from typing import Any
from unittest import mock

from cli.main import main


@dataclass(frozen=True)
class Ended:
    """What a command printed, and its exit code."""

    code: int
    stdout: str
    stderr: str

    @property
    def json(self) -> Any:
        """Standard output as JSON."""
        return json.loads(self.stdout)


def carpool(line: str) -> Ended:
    """Runs `carpool` with these arguments, which are split as a shell splits them."""
    out, err = (io.TextIOWrapper(io.BytesIO(), "utf-8", write_through=True) for _ in range(2))
    with (
        mock.patch.object(sys, "argv", ["carpool", *shlex.split(line)]),
        redirect_stdout(out),
        redirect_stderr(err),
    ):
        try:
            main()
            code = 0
        except SystemExit as end:
            code = int(end.code or 0)
    texts = [stream.buffer.getvalue().decode() for stream in (out, err)]
    return Ended(code, *texts)
