"""The index and the programs that the services of a run open, and their changes in mid-run."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import cycle
from pathlib import Path

from bench.reliability.chaos.check_answer import MODULE
from carpool.clock import SystemClock
from indexer.write import promote

IN_MID_RUN = "# In mid-run"


class DeployedFiles:
    """`index`: a link to one of several folders. `programs`: a module."""

    def __init__(self, folder: Path, index_dirs: Sequence[Path]) -> None:
        """`index_dirs`: of the same passages in other clusters; services open the first one."""
        self.index, self.programs = folder / "index", folder / "programs.py"
        self._index_dirs = cycle(index_dirs)
        self.programs.write_text(Path(MODULE).read_text().partition(IN_MID_RUN)[0])
        self.change_index()

    def change_index(self) -> None:
        """Makes the next index the newest."""
        index_dir, link = next(self._index_dirs), self.index.with_name("next-index")
        promote(index_dir, SystemClock())
        link.unlink(missing_ok=True)
        link.symlink_to(index_dir.resolve())
        link.replace(self.index)

    def change_programs(self) -> None:
        """Adds the next version of a program; the earlier one stays."""
        whole = self.programs.with_name("next-programs.py")
        whole.write_text(Path(MODULE).read_text())
        whole.replace(self.programs)
