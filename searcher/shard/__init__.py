"""The hot shard: whole clusters on a GPU, which scans them faster than codes are scanned.

[ADR 0020](../../docs/adr/0020-hot-shard.md) says why.
"""
