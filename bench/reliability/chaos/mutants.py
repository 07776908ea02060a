"""Known defects of the delivery, each a patch, with the load and the faults that find it.

A patch is applied to a copy of the packages that only the services of the run use.
"""

from __future__ import annotations

import shutil
import subprocess
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

import msgspec

from bench.reliability.chaos.plan import KILLS, Kind, Range, shares_of
from bench.reliability.chaos.questions import BATCH_SHARE
from carpool.errors import ConfigError

PACKAGES = ("schemas", "producers", "grouper", "searcher", "generator", "indexer", "carpool", "cli")
ROOT = Path(__file__).resolve().parents[3]
"""Where the packages are."""
PATCHES = Path(__file__).parent / "mutants"


class Mutant(msgspec.Struct, frozen=True, kw_only=True):
    """One defect. `what`: the defect, in words.

    `seconds`: how long `queries` questions are published. `shares`: of each kind in `faults`.
    `members`: the processes that are hit; empty: all. `settings`: environment variables. `breaks`:
    how the promise begins that must be broken, where the load alone breaks others; empty: any.
    """

    what: str
    number: int = 0
    queries: int = 900
    seconds: float = 45.0
    seed: int = 1
    faults: int = 12
    shares: Mapping[Kind, float] = msgspec.field(default_factory=lambda: shares_of(KILLS))
    lasts_s: Mapping[Kind, Range] = {}
    members: tuple[str, ...] = ()
    settings: dict[str, str] = {}
    wait_s_max: float | None = None
    breaks: str = ""
    batch_share: float = BATCH_SHARE
    workflow_share: float = 0.0
    document_share: float = 0.0

    @property
    def patch(self) -> Path:
        (found,) = PATCHES.glob(f"{self.number}-*.patch")
        return found


IN_A_TRANSACTION: Mapping[Kind, float] = {"kill in a transaction": 1.0}
_MUTANTS = (
    Mutant(what="offsets are committed outside the transaction", shares=IN_A_TRANSACTION),
    Mutant(
        what="a takeover does not fence the last owner",
        shares=IN_A_TRANSACTION,
        faults=1,
        # The member does not come back, so nobody else ends its transaction.
        lasts_s={"kill in a transaction": (100.0, 110.0)},
        members=("grouper-1",),
        wait_s_max=45.0,  # a transaction that nobody ends blocks its readers for 60 s
    ),
    Mutant(
        what="work counts as complete before it is committed",
        # A transaction is aborted when its group changes meanwhile: it must be long.
        shares={"kill": 0.75, "slow network": 0.25},
        lasts_s={"slow network": (15.0, 20.0), "kill": (0.0, 3.0)},
        settings={"CARPOOL_KAFKA_LIBRDKAFKA": '{"group.protocol": "classic"}'},
    ),
    Mutant(
        what="a commit without a reply is sent again without asking for its outcome",
        queries=600,
        seconds=30.0,
        shares={"lost reply": 0.7, "cut": 0.3},
    ),
    Mutant(
        what="the log of answers is not asked",
        queries=400,
        seconds=20.0,
        faults=2,
        # Else a repeated id gets its answer as an equal prompt.
        settings={"CARPOOL_GENERATOR_REUSE": "false"},
    ),
    Mutant(
        what="commit metadata is dropped",
        # Large groups of batch queries are committed in parts while interactive ones come.
        queries=3_000,
        seconds=20.0,
        batch_share=0.8,
        shares={"kill": 0.5, "kill in a transaction": 0.5},
        members=("searcher-1", "searcher-2"),
    ),
    Mutant(
        what="the work of revoked partitions is committed",
        # A group cannot reach its coordinator for a session: both members finish work, lose their
        # partitions, and live on. Takeovers fence members that are paused instead, and after two
        # pauses without progress one record is in hand at a time: then nothing is left to commit.
        # Generators that lose what they finished within a session repeat more than one second.
        faults=3,  # with this seed, one for each broker
        shares={"half-open": 1.0},
        lasts_s={"half-open": (8.0, 10.0)},
        breaks="nothing twice",
    ),
    Mutant(what="keys of prompts are one digit", queries=200, seconds=10.0, faults=1),
    Mutant(
        what="a retrieval has the headers of another question of its group",
        # Only groups of several questions have others.
        queries=1_500,
        seconds=10.0,
        batch_share=0.8,
        faults=1,
    ),
    Mutant(
        what="passages are read for citations once for all answers",
        queries=200,
        seconds=10.0,
        faults=1,
    ),
    Mutant(
        what="the first search of a workflow is remembered by its program",
        queries=100,
        seconds=10.0,
        faults=1,
        workflow_share=0.5,
    ),
    Mutant(
        what="a searcher hides no row of its base",
        queries=400,
        seconds=30.0,
        faults=1,
        document_share=0.5,
    ),
    Mutant(
        what="what came between a base and its opening is passed over",
        queries=600,
        seconds=45.0,
        faults=2,
        shares={"kill": 1.0},
        members=("searcher-1", "searcher-2"),
        document_share=0.5,
    ),
)
MUTANTS = {n: msgspec.structs.replace(one, number=n) for n, one in enumerate(_MUTANTS, 1)}


@contextmanager
def patched_packages(mutant: Mutant) -> Iterator[Path]:
    """Yields a folder with a patched copy of the packages, and removes it afterwards."""
    with tempfile.TemporaryDirectory(prefix="carpool-mutant-") as name:
        folder = Path(name)
        for package in PACKAGES:
            ignored = shutil.ignore_patterns("__pycache__")
            shutil.copytree(ROOT / package, folder / package, ignore=ignored)
        apply(mutant, folder)
        yield folder


def apply(mutant: Mutant, folder: Path) -> None:
    """Applies the patch in `folder`. Raises `ConfigError` where it does not apply or change it."""
    command = ["git", "apply", "--verbose", str(mutant.patch)]
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True, check=False)
    if done.returncode or "Applied" not in done.stderr:
        raise ConfigError(
            f"the patch of mutant {mutant.number} does not apply: the code that it changes was "
            f"changed. Make the patch again: {mutant.patch}\n{done.stderr}"
        )
