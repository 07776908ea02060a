"""The random rotation of the codes: a raw float32 file."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from carpool.arrays import Float32
from carpool.disk.files import write_atomically
from carpool.disk.manifest import Manifest

ROTATION_NAME = "rotation.f32"


def random_rotation(dimension: int, seed: int) -> Float32:
    """Returns a random rotation: (dim, dim) float32, orthogonal."""
    numbers = np.random.default_rng(seed).standard_normal((dimension, dimension))
    rotation, triangle = np.linalg.qr(numbers)
    # Without these signs the rotations of a QR decomposition are not equally likely.
    turned: Float32 = (rotation * np.sign(np.diag(triangle))).astype(np.float32)
    return turned


def write_rotation(index_dir: Path, rotation: Float32) -> None:
    """Writes a rotation: (dim, dim) float32. Atomic, durable."""
    write_atomically(index_dir / ROTATION_NAME, rotation.astype("<f4").tobytes())


def read_rotation(index_dir: Path, manifest: Manifest) -> Float32:
    """Returns the rotation: (dim, dim) float32, read-only. Raises `CorruptionError`."""
    content = manifest.read(index_dir, ROTATION_NAME, manifest.dimension**2 * 4)
    rotation: Float32 = np.frombuffer(content, "<f4").reshape(manifest.dimension, -1)
    return rotation
