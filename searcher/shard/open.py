"""Opens a device of the shard by its name. PyTorch is imported only for `gpu`."""

from __future__ import annotations

from typing import Literal

from searcher.shard.device import Float32, ShardDevice, ShardNumbers
from searcher.shard.ram import RamShard

DeviceName = Literal["ram", "gpu"]


def open_device(
    name: DeviceName, numbers: ShardNumbers, *, nlist: int, rotation: Float32, bytes_max: int
) -> ShardDevice:
    """Returns an empty device for the clusters of an index.

    `nlist`: of the index; `rotation`: of its codes, (dim, dim) float32; `bytes_max`: of the
    device's memory. Raises `ConfigError` where this machine has no such device, or too little of
    its memory.
    """
    if name == "gpu":
        from searcher.shard.gpu import GpuShard

        return GpuShard(numbers, nlist=nlist, rotation=rotation, bytes_max=bytes_max)
    return RamShard(numbers, nlist=nlist, rotation=rotation, bytes_max=bytes_max)
