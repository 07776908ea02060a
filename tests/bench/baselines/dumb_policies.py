"""The policies of benchmarks as slowly and plainly as they can be written."""

from __future__ import annotations

from collections.abc import Mapping, Set

from searcher.plan.slices import SliceId
from tests.searcher.dumb_policies import Dumb


def dumb_lfu() -> Dumb:
    return Dumb(lambda history, cluster: (history.uses(cluster), history.last_use(cluster)))


def dumb_edgerag(latency_us: Mapping[SliceId, int]) -> Dumb:
    return Dumb(lambda history, cluster: (latency_us[cluster] * history.uses(cluster),))


class DumbGdsf(Dumb):
    """The pseudo-code of the paper: a dictionary of priorities, and the age L."""

    def __init__(self, cost_per_byte: Mapping[SliceId, float]) -> None:
        super().__init__(lambda history, cluster: (self.priorities[cluster],))
        self.age = 0.0
        self.cost_per_byte = cost_per_byte
        self.frequency: dict[SliceId, int] = {}
        self.priorities: dict[SliceId, float] = {}

    def touch(self, cluster: SliceId) -> None:
        self.frequency[cluster] = self.frequency.get(cluster, 0) + 1
        if cluster in self.history.resident:
            self.priorities[cluster] = (
                self.age + self.frequency[cluster] * self.cost_per_byte[cluster]
            )

    def insert(self, cluster: SliceId) -> None:
        super().insert(cluster)
        self.frequency.setdefault(cluster, 1)
        self.priorities[cluster] = self.age + self.frequency[cluster] * self.cost_per_byte[cluster]

    def remove(self, cluster: SliceId) -> None:
        super().remove(cluster)
        self.age = max(self.age, self.priorities.pop(cluster))
        del self.frequency[cluster]


class DumbTinyLfu:
    """One list of (segment, cluster), in the order of use; segments are found by going through
    it.
    """

    def __init__(
        self, size_bytes: Mapping[SliceId, int], window_bytes: int, main_bytes: int, sample: int
    ) -> None:
        self.sizes = size_bytes
        self.limits = {"window": window_bytes, "main": main_bytes}
        self.sample = sample
        self.sampled = 0
        self.uses: dict[SliceId, int] = {}
        self.entries: list[tuple[str, SliceId]] = []

    def of(self, segment: str) -> list[SliceId]:
        return [cluster for where, cluster in self.entries if where == segment]

    def move(self, cluster: SliceId, segment: str) -> None:
        self.entries = [(where, other) for where, other in self.entries if other != cluster]
        self.entries.append((segment, cluster))

    def overflow(self, segment: str, into: str) -> None:
        while sum(self.sizes[c] for c in self.of(segment)) > self.limits[segment]:
            self.move(self.of(segment)[0], into)

    def touch(self, cluster: SliceId) -> None:
        self.uses[cluster] = self.uses.get(cluster, 0) + 1
        self.sampled += 1
        if self.sampled >= self.sample:
            self.sampled //= 2
            self.uses = {seen: count // 2 for seen, count in self.uses.items()}
        if cluster in self.of("window"):
            self.move(cluster, "window")
        elif cluster in self.residents():
            self.move(cluster, "main")
            self.overflow("main", "probation")

    def set_horizon(self, horizon: Mapping[SliceId, int]) -> None:
        pass

    def insert(self, cluster: SliceId) -> None:
        self.move(cluster, "window")
        self.overflow("window", "candidate")

    def remove(self, cluster: SliceId) -> None:
        candidates = self.of("candidate")
        self.entries = [(where, other) for where, other in self.entries if other != cluster]
        if candidates and candidates[0] != cluster:
            self.move(candidates[0], "probation")

    def victim(self, protected: Set[SliceId]) -> SliceId | None:
        candidates = [c for c in self.of("candidate") if c not in protected]
        settled = [c for c in self.of("probation") + self.of("main") if c not in protected]
        duel = (candidates[:1] + settled[:1]) if settled else candidates[1::-1]
        if len(duel) == 2:
            candidate, incumbent = duel
            return (
                candidate
                if self.uses.get(candidate, 0) <= self.uses.get(incumbent, 0)
                else incumbent
            )
        return next(iter(duel + [c for c in self.of("window") if c not in protected]), None)

    def residents(self) -> frozenset[SliceId]:
        return frozenset(cluster for _, cluster in self.entries)

    def check_integrity(self) -> None:
        assert len(self.residents()) == len(self.entries)
