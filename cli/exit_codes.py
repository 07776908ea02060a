"""The one table of exit codes. `main` of `cli/main.py` chooses one for each class of error."""

from __future__ import annotations

OK = 0
FAILED = 1
CHANGE_NEEDED = 2
INTERRUPTED = 130

EXIT_CODES: dict[int, str] = {
    OK: "The command did what was asked. `carpool up` ends so after one Ctrl-C.",
    FAILED: "The command ran and the result is bad: no answer, no broker that answers, a service "
    "that is not ready or is stuck, topics that differ from what Carpool needs, a damaged index, "
    "no dead letter selected, a benchmark whose promise is broken, or an error that another "
    "attempt may not meet.",
    CHANGE_NEEDED: "Nothing was done, because something must be changed first: an option or a "
    "setting that does not fit, a missing index, model or topic, a missing extra. "
    "`carpool up` does not restart a service that ends so before it was ready.",
    INTERRUPTED: "The command was interrupted by Ctrl-C.",
}
"""The meaning of each exit code."""
