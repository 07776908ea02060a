"""Runs the command line: `python -m cli` is `carpool`."""

from cli.main import main

main()
