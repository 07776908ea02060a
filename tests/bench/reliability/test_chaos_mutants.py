"""The mutants of chaos: every patch applies to the code of today."""

from __future__ import annotations

import pytest

from bench.reliability.chaos.mutants import MUTANTS, PACKAGES, PATCHES, ROOT, Mutant, apply
from carpool.errors import ConfigError


def changed_files(mutant: Mutant) -> list[str]:
    lines = mutant.patch.read_text().splitlines()
    return [line.removeprefix("+++ b/") for line in lines if line.startswith("+++ b/")]


def test_each_mutant_has_one_patch_of_the_packages_that_services_run() -> None:
    assert sorted(MUTANTS) == list(range(1, len(MUTANTS) + 1))
    assert sorted(each.patch for each in MUTANTS.values()) == sorted(PATCHES.iterdir())
    for mutant in MUTANTS.values():
        assert {name.split("/")[0] for name in changed_files(mutant)} <= set(PACKAGES)


@pytest.mark.parametrize("mutant", MUTANTS.values(), ids=lambda mutant: mutant.patch.stem)
def test_each_patch_applies_and_leaves_code_that_compiles(
    mutant: Mutant, tmp_path_factory: pytest.TempPathFactory
) -> None:
    folder = tmp_path_factory.mktemp("packages")
    for name in changed_files(mutant):
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text((ROOT / name).read_text())
    apply(mutant, folder)
    for name in changed_files(mutant):
        assert (folder / name).read_text() != (ROOT / name).read_text()
        compile((folder / name).read_text(), name, "exec")
    with pytest.raises(ConfigError, match="does not apply"):
        apply(mutant, folder)
