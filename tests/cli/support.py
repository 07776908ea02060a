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


def carpool(line: str, stdin: bytes = b"", encoding: str = "utf-8") -> Ended:
    """Runs `carpool` with these arguments, which are split as a shell splits them.

    `encoding`: of standard output and error.
    """
    out = io.TextIOWrapper(io.BytesIO(), encoding, write_through=True)
    err = io.TextIOWrapper(io.BytesIO(), encoding, "backslashreplace", write_through=True)
    with (
        mock.patch.object(sys, "argv", ["carpool", *shlex.split(line)]),
        mock.patch.object(sys, "stdin", io.TextIOWrapper(io.BytesIO(stdin))),
        redirect_stdout(out),
        redirect_stderr(err),
    ):
        try:
            main()
            code = 0
        except SystemExit as end:
            code = int(end.code or 0)
    texts = [stream.buffer.getvalue().decode(encoding) for stream in (out, err)]
    return Ended(code, *texts)
