"""The partition of a key, as Java's default partitioner and our producers choose it. Pure."""

from __future__ import annotations

_M = 0x5BD1E995
_SEED = 0x9747B28C
_BITS = 0xFFFFFFFF


def partition_of(key: bytes, partitions: int) -> int:
    """Returns the partition of a key among `partitions`: `toPositive(murmur2(key)) % partitions`.

    librdkafka calls this partitioner `murmur2_random`. Microseconds for a key of 1,024 bytes.
    """
    return (_murmur2(key) & 0x7FFFFFFF) % partitions


def _murmur2(data: bytes) -> int:
    """Returns MurmurHash2 of 32 bits with Kafka's seed."""
    whole = len(data) & ~3
    found = _SEED ^ len(data)
    for start in range(0, whole, 4):
        word = int.from_bytes(data[start : start + 4], "little") * _M & _BITS
        word = (word ^ word >> 24) * _M & _BITS
        found = found * _M & _BITS ^ word
    if rest := data[whole:]:
        found = (found ^ int.from_bytes(rest, "little")) * _M & _BITS
    found = (found ^ found >> 13) * _M & _BITS
    return found ^ found >> 15
