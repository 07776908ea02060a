"""The hot shard: whole clusters on a device that scans them faster than codes are scanned.

[ADR 0020](../../docs/adr/0020-hot-shard.md) says why. A device is `ram` or `gpu`.
"""
