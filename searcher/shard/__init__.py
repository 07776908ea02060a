"""The hot shard: whole clusters on a device, which is a GPU, or memory for trials.

[ADR 0020](../../docs/adr/0020-hot-shard.md) says why.
"""
