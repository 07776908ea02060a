"""The books of the budget: which clusters are in memory, being read, or stuck in a read, and who
must go for another.

What is *held* (read for queries in hand, and not scored yet) and what is being read never goes; of
the rest the eviction policy decides. It learns of a cluster when room for it is reserved, not when
its bytes arrive, and it may choose what is still to be scored: whoever reserves then scores that
first. So its decisions depend neither on how fast the disk was nor on what was scored meanwhile.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Set

from schemas.record import ClusterId
from searcher.plan.eviction.policy import CachePolicy


class Residency:
    """Every byte of the budget. `size_bytes`: what each cluster takes in memory, none more than
    `budget_bytes`.
    """

    def __init__(
        self, budget_bytes: int, size_bytes: Mapping[ClusterId, int], policy: CachePolicy
    ) -> None:
        self._budget_bytes = budget_bytes
        self._size_bytes = size_bytes
        self._policy = policy
        self._resident: set[ClusterId] = set()
        self._reading: set[ClusterId] = set()
        self._stuck: dict[
            ClusterId, int
        ] = {}  # reads given up that still own memory; a cluster may be stuck twice
        self._held: set[ClusterId] = set()
        self._fixed: set[ClusterId] = set()  # held or being read: what the policy must not choose
        self._used_bytes = 0
        self._fixed_bytes = 0

    @property
    def used_bytes(self) -> int:
        """Bytes of everything that is resident, being read or stuck."""
        return self._used_bytes

    @property
    def reading_bytes(self) -> int:
        """Bytes of the reads in flight, stuck ones included."""
        reading = sum(self._size_bytes[cluster] for cluster in self._reading)
        return reading + sum(
            self._size_bytes[cluster] * count for cluster, count in self._stuck.items()
        )

    @property
    def room_bytes(self) -> int:
        """Bytes that could be reserved now, if all went that may go."""
        return self._budget_bytes - self._fixed_bytes

    def is_resident(self, cluster: ClusterId) -> bool:
        """Whether all of `cluster` is in memory."""
        return cluster in self._resident

    def is_reading(self, cluster: ClusterId) -> bool:
        """Whether `cluster` is being read (stuck reads are not counted: they were given up)."""
        return cluster in self._reading

    def residents(self) -> frozenset[ClusterId]:
        """Returns the clusters that are in memory, whole."""
        return frozenset(self._resident)

    def held(self) -> Set[ClusterId]:
        """Returns what is held; a view, not to be changed."""
        return self._held

    def unheld_reads(self) -> tuple[ClusterId, ...]:
        """Returns what is being read and not held, in the order of the ids."""
        return tuple(sorted(self._reading - self._held))

    def hold(self, cluster: ClusterId) -> None:
        """`cluster`, resident or being read, must stay until it is let go. May be said again."""
        assert cluster in self._resident or cluster in self._reading
        if cluster not in self._held:
            self._held.add(cluster)
            self._fix(cluster)

    def let_go(self, cluster: ClusterId) -> None:
        """`cluster` may go. Nothing happens where it is not held."""
        if cluster in self._held:
            self._held.remove(cluster)
            if cluster not in self._reading:
                self._unfix(cluster)

    def reserve(self, cluster: ClusterId) -> tuple[ClusterId, ...] | None:
        """Makes room for reading `cluster`; returns what had to go, in order. None, and nothing
        changes, if there is no room.
        """
        if self._size_bytes[cluster] > self.room_bytes:
            return None
        victims = []
        while self._used_bytes + self._size_bytes[cluster] > self._budget_bytes:
            victim = self._policy.victim(self._fixed)
            assert victim is not None, (
                "the books say that there is room, and the policy has nothing to evict"
            )
            self._evict(victim)
            victims.append(victim)
        self._begin(cluster)
        return tuple(victims)

    def reserve_ahead(
        self, cluster: ClusterId, *, spare_bytes: int, may_go: Callable[[ClusterId], bool]
    ) -> tuple[ClusterId, ...] | None:
        """Like `reserve`, but only what `may_go` goes, and `spare_bytes` of room are left."""
        if self._size_bytes[cluster] + spare_bytes > self.room_bytes:
            return None
        victims: list[ClusterId] = []
        free_bytes = self._budget_bytes - self._used_bytes
        kept = set(self._fixed)
        while free_bytes < self._size_bytes[cluster]:
            victim = self._policy.victim(kept)
            assert victim is not None, (
                "the books say that there is room, and the policy has nothing to evict"
            )
            if not may_go(victim):
                return None
            kept.add(victim)
            victims.append(victim)
            free_bytes += self._size_bytes[victim]
        for victim in victims:
            self._evict(victim)
        self._begin(cluster)
        return tuple(victims)

    def arrived(self, cluster: ClusterId) -> None:
        """The read of `cluster` ended well."""
        self._reading.remove(cluster)
        self._resident.add(cluster)
        if cluster not in self._held:
            self._unfix(cluster)

    def failed(self, cluster: ClusterId, *, is_stuck: bool) -> None:
        """The read of `cluster` was given up; where `is_stuck` its memory is not free before
        `freed`.
        """
        self._held.discard(cluster)
        self._reading.remove(cluster)
        self._unfix(cluster)
        self._policy.remove(cluster)
        if is_stuck:
            self._stuck[cluster] = self._stuck.get(cluster, 0) + 1
            self._fixed_bytes += self._size_bytes[cluster]
        else:
            self._used_bytes -= self._size_bytes[cluster]

    def freed(self, cluster: ClusterId) -> None:
        """The memory of a stuck read came back."""
        self._stuck[cluster] -= 1
        if not self._stuck[cluster]:
            del self._stuck[cluster]
        self._fixed_bytes -= self._size_bytes[cluster]
        self._used_bytes -= self._size_bytes[cluster]

    def check_integrity(self) -> None:
        """Raises `AssertionError` where the books do not agree with each other or with the
        policy's.
        """
        stuck_bytes = sum(
            self._size_bytes[cluster] * count for cluster, count in self._stuck.items()
        )
        assert not self._resident & self._reading
        assert self._held <= self._resident | self._reading
        assert self._fixed == self._held | self._reading
        assert self._policy.residents() == self._resident | self._reading
        here = self._resident | self._reading
        assert self._used_bytes == sum(self._size_bytes[cluster] for cluster in here) + stuck_bytes
        assert (
            self._fixed_bytes
            == sum(self._size_bytes[cluster] for cluster in self._fixed) + stuck_bytes
        )
        assert self._fixed_bytes <= self._used_bytes <= self._budget_bytes
        assert all(count > 0 for count in self._stuck.values())

    # ---- inside

    def _begin(self, cluster: ClusterId) -> None:
        assert cluster not in self._resident and cluster not in self._reading
        self._reading.add(cluster)
        self._used_bytes += self._size_bytes[cluster]
        self._fix(cluster)
        self._policy.insert(cluster)
        assert self._used_bytes <= self._budget_bytes, "the budget is overdrawn"

    def _evict(self, victim: ClusterId) -> None:
        assert victim not in self._fixed
        self._policy.remove(victim)
        self._resident.remove(victim)
        self._used_bytes -= self._size_bytes[victim]

    def _fix(self, cluster: ClusterId) -> None:
        if cluster not in self._fixed:
            self._fixed.add(cluster)
            self._fixed_bytes += self._size_bytes[cluster]

    def _unfix(self, cluster: ClusterId) -> None:
        self._fixed.remove(cluster)
        self._fixed_bytes -= self._size_bytes[cluster]
