"""A shard on a GPU, or in memory for trials without one, scanned by PyTorch.

A scan is one matrix product: queries times the rows of all blocks, whichever query asked for them.
It keeps the best estimate of each block for each query, and drops those that were not asked for.
The best `count` rows of a query are in its best `count` blocks, whose rows are scored again. So the
scores of all rows are never in memory together, and only one number a block is sorted.
"""

from __future__ import annotations

import contextlib
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from carpool.arrays import Float32, Int64
from carpool.codes.margin import SQ8_REACH
from carpool.codes.row_mask import RowMask
from carpool.errors import ConfigError
from schemas.record import ClusterId
from searcher.plan.cluster_blocks import ClusterBlocks, ScanBlocks
from searcher.plan.gpu_blocks import BLOCK_ROWS, LIBRARY_BYTES, blocks_of, divide_gpu_memory
from searcher.shard.device import ShardFullError, ShardNumbers, Vectors

_SQ8_ZERO = 127
"""The code of `sq8` that stands for 0: a row is (codes - 127) times a step."""
_NOTHING = float("-inf")
MASK_COST = 12
"""A mask takes as much scratch, for the numbers of rows, as the scores of so many queries."""


def _check_cuda() -> None:
    if not torch.cuda.is_available():
        raise ConfigError(
            "a hot shard on a GPU was asked for, and PyTorch finds no CUDA device: install a "
            "driver and a PyTorch with CUDA (check torch.cuda.is_available()), or set "
            "searcher.shard_bytes to 0"
        )


class _Lane:
    """The work of one thread on a device, in order: a stream of CUDA. A CPU needs none."""

    def __init__(self, device: Any) -> None:
        self._stream: Any = torch.cuda.Stream(device) if device.type == "cuda" else None

    def work(self) -> AbstractContextManager[Any]:
        """What is called within goes to this lane."""
        stream: AbstractContextManager[Any] = contextlib.nullcontext()
        if self._stream is not None:
            stream = torch.cuda.stream(self._stream)
        return stream

    def wait(self) -> None:
        """Blocks until all that was called has been done. Other threads run meanwhile."""
        if self._stream is not None:
            self._stream.record_event(torch.cuda.Event(blocking=True)).synchronize()


class GpuShard:
    """Implements `ShardDevice`. `capacity_bytes` is less than the budget: scans need memory, too.

    Loads have a stream and pinned memory of their own, so that they overlap scans. Blocks that are
    being written may be scanned; no query asks for them, so what comes out is dropped.
    """

    def __init__(
        self,
        numbers: ShardNumbers,
        *,
        nlist: int,
        rotation: Float32,
        bytes_max: int,
        device: str = "cuda",
    ) -> None:
        """`nlist`: of the index; `rotation`: of its codes, (dim, dim) float32.

        `bytes_max`: of the device's memory, without what CUDA itself takes. `device`: `cuda`, or
        `cpu`, where products are of float32. Raises `ConfigError` where there is no such
        device, or where it has too little memory.
        """
        if device == "cuda":
            _check_cuda()
        self.codec: str = numbers
        self._nlist = nlist
        self._device: Any = torch.device(device)
        self._rotation = rotation if numbers == "sq8" else None
        self._open_codec(numbers, rotation)
        self._scans, self._loads = _Lane(self._device), _Lane(self._device)
        is_cuda = self._device.type == "cuda"
        self._computed: Any = torch.float16 if is_cuda else torch.float32
        # Products of float16 on a GPU have sums of float32. Other devices do not know the option.
        self._sums: dict[str, Any] = {"out_dtype": torch.float32} if is_cuda else {}
        self._take_memory(bytes_max, LIBRARY_BYTES if is_cuda else 0, len(rotation))
        # cuBLAS keeps a workspace for each thread, and uses that of a thread that has ended again.
        with ThreadPoolExecutor(1) as thread:
            thread.submit(self._warm_up, len(rotation)).result()

    def _open_codec(self, numbers: ShardNumbers, rotation: Float32) -> None:
        """Vectors are stored as float16, or rotated in 8 bits a number.

        A row is (what is stored - `_zero`) * `_step`.
        """
        self._stored: Any = torch.float16
        self._zero, self._step = 0, 1.0
        if numbers == "sq8":
            self._stored = torch.uint8
            self._zero, self._step = _SQ8_ZERO, 2 * SQ8_REACH / 255 / len(rotation) ** 0.5

    def _warm_up(self, dimension: int) -> None:
        """Starts the libraries of the GPU, which takes up to a second: no query waits for it."""
        self.load(ClusterId(0), 0, np.zeros((1, dimension), np.float32))
        self.scan(np.zeros((1, dimension), np.float32), [np.zeros(1, np.int64)], 1)
        self.drop(ClusterId(0))

    def _take_memory(self, bytes_max: int, library_bytes: int, dimension: int) -> None:
        blocks = divide_gpu_memory(
            bytes_max - library_bytes,
            dimension=dimension,
            stored_bytes=self._stored.itemsize,
            computed_bytes=self._computed.itemsize,
            nlist=self._nlist,
        )
        if blocks is None:
            raise ConfigError(
                f"the hot shard may take {bytes_max} bytes of the GPU, and scans need as much: no "
                "block of rows has room; raise searcher.shard_bytes"
            )
        self._blocks = blocks
        self.capacity_bytes = blocks.capacity_bytes
        place: dict[str, Any] = {"device": self._device}
        try:
            self._arena = torch.empty(
                (blocks.count, BLOCK_ROWS, dimension), dtype=self._stored, **place
            )
            # Cluster, first row and row count of each block.
            self._books = torch.full((blocks.count, 3), self._nlist, dtype=torch.int64, **place)
            self._landing = torch.empty(
                (blocks.staging_blocks, BLOCK_ROWS, dimension), dtype=self._stored, **place
            )
            self._staging = torch.empty(
                self._landing.shape,
                dtype=self._stored,
                pin_memory=self._device.type == "cuda",
            )
        except torch.OutOfMemoryError as error:
            raise ConfigError(
                f"the GPU has no {bytes_max} bytes for the hot shard: {error}; lower "
                "searcher.shard_bytes, or the share of vLLM (--gpu-memory-utilization)"
            ) from error
        self._places = ClusterBlocks(self._nlist, blocks.count)
        if self._device.type == "cuda":
            torch.cuda.synchronize()  # the books are filled before other streams use them

    def size_bytes(self, row_count: int) -> int:
        """Returns what a cluster of `row_count` rows takes: whole blocks, with their books."""
        return blocks_of(row_count) * self._blocks.block_bytes

    # ---- the thread that loads and drops

    def load(self, cluster: ClusterId, first_row: int, vectors: Vectors) -> None:
        """As `ShardDevice.load`. Blocks until the last copy to the device is complete."""
        count = blocks_of(len(vectors))
        blocks = self._places.find_free(count)
        if blocks is None:
            raise ShardFullError(
                f"cluster {cluster} takes {count} blocks of the shard, and fewer are free; drop "
                "other clusters first"
            )
        for start in range(0, count, self._blocks.staging_blocks):
            some = blocks[start : start + self._blocks.staging_blocks]
            at = start * BLOCK_ROWS
            self._write(cluster, first_row + at, vectors[at : at + len(some) * BLOCK_ROWS], some)
        self._places.take(cluster, blocks)

    def _write(self, cluster: int, first_row: int, vectors: Vectors, blocks: Int64) -> None:
        """Writes rows to `blocks`. Rows that are missing in the last block repeat its last row, so
        that the best estimate of the block is right; they are not counted in its books.
        """
        numbers: npt.NDArray[Any] = vectors
        if self._rotation is not None:
            rotated = vectors.astype(np.float32, copy=False) @ self._rotation
            numbers = np.clip(rotated / self._step + 127.5, 0, 255).astype(np.uint8)
        rows = self._staging.flatten(0, 1)
        # PyTorch converts to float16 many times faster than NumPy.
        rows[: len(vectors)] = torch.from_numpy(numbers)
        rows[len(vectors) : len(blocks) * BLOCK_ROWS] = rows[len(vectors) - 1].clone()
        starts = np.arange(len(blocks)) * BLOCK_ROWS
        books = np.empty((len(blocks), 3), np.int64)
        books[:, 0] = cluster
        books[:, 1] = first_row + starts
        books[:, 2] = np.minimum(len(vectors) - starts, BLOCK_ROWS)
        with self._loads.work():
            landing = self._landing[: len(blocks)]
            landing.copy_(self._staging[: len(blocks)], non_blocking=True)
            places = self._on_device(blocks)
            self._arena.index_copy_(0, places, landing)
            self._books.index_copy_(0, places, self._on_device(books))
        self._loads.wait()

    def drop(self, cluster: ClusterId) -> None:
        """As `ShardDevice.drop`."""
        blocks = self._places.free(cluster)
        with self._loads.work():
            self._books[:, 0].index_fill_(0, self._on_device(blocks), self._nlist)
        self._loads.wait()

    # ---- the thread that scans

    def scan(
        self,
        queries: Float32,
        probes: Sequence[Int64],
        count: int,
        mask: RowMask | None = None,
    ) -> tuple[Int64, Float32]:
        """As `ShardDevice.scan`. Cost: the bytes of all blocks from the first to the last that any
        query asked for, or three times the bytes of those that were asked for, if that is less.
        """
        rows = np.full((len(queries), count), -1, np.int64)
        estimates = np.full((len(queries), count), _NOTHING, np.float32)
        at_once = self._blocks.queries_at_once(count)
        for start in range(0, len(queries), at_once):
            part = slice(start, start + at_once)
            found = self._scan(queries[part], probes[part], count, mask)
            if found is not None:
                width = found[0].shape[1]
                rows[part, :width], estimates[part, :width] = found
        return rows, estimates

    def _scan(
        self, queries: Float32, probes: Sequence[Int64], count: int, mask: RowMask | None
    ) -> tuple[Int64, Float32] | None:
        """Returns the rows and estimates of one pass, at most `count` of each query."""
        clusters = np.concatenate(probes)
        blocks = self._places.to_scan(clusters)
        if blocks is None:
            return None
        askers = np.repeat(np.arange(len(queries)), [len(one) for one in probes])
        if self._rotation is not None:
            queries = queries @ self._rotation
        with self._scans.work():
            factors = self._on_device(queries).to(self._computed)
            pairs = self._on_device(askers * (self._nlist + 1) + clusters)
            bits = None if mask is None else self._on_device(mask)
            chosen = self._best_blocks(factors, pairs, blocks, count, bits)
            rows, estimates = self._best_rows(factors, *chosen, count, bits)
            return rows.cpu().numpy(), estimates.cpu().numpy()

    def _best_blocks(
        self, factors: Any, pairs: Any, blocks: ScanBlocks, count: int, bits: Any
    ) -> tuple[Any, Any]:
        """Returns the `count` best of `blocks` for each query, and which of them it asked for.

        `factors`: (n, dim); `pairs`: the asked (query, cluster) as query * (nlist + 1) + cluster;
        `bits`: of the mask. Both results are (n, count or fewer).
        """
        span, gathered = blocks
        places = None if gathered is None else self._on_device(gathered)
        width = span.stop - span.start if gathered is None else len(gathered)
        query_count = len(factors)
        best = torch.empty((query_count, width), dtype=torch.float32, device=self._device)
        is_copied = places is not None or self._stored != self._computed
        mask_cost = 0 if bits is None else MASK_COST
        chunk = self._blocks.chunk_blocks(query_count + mask_cost, is_copied=is_copied)
        for start in range(0, width, chunk):
            end = min(start + chunk, width)
            some: Any = slice(span.start + start, span.start + end)
            if places is not None:
                some = places[start:end]
            scores = torch.mm(factors, self._operand(some).flatten(0, 1).T, **self._sums)
            if bits is not None:
                scores.masked_fill_(self._are_hidden(self._books[some], bits).flatten(), _NOTHING)
            torch.amax(scores.view(query_count, -1, BLOCK_ROWS), 2, out=best[:, start:end])
            del scores  # before the next are computed
        is_other = torch.ones(
            query_count * (self._nlist + 1), dtype=torch.bool, device=self._device
        ).index_fill_(0, pairs, False)
        owners = self._books[span if places is None else places, 0]
        best.masked_fill_(is_other.view(query_count, -1).index_select(1, owners), _NOTHING)
        top = best.topk(min(count, width), 1, sorted=False)
        return (
            top.indices + span.start if places is None else places[top.indices],
            top.values > _NOTHING,
        )

    def _best_rows(
        self, factors: Any, blocks: Any, are_asked: Any, count: int, bits: Any
    ) -> tuple[Any, Any]:
        """Returns the `count` best rows of each query in its `blocks`, and their estimates.

        `blocks`, `are_asked`: (n, width). Both results are (n, count or fewer).
        """
        query_count, width = blocks.shape
        flat = blocks.flatten()
        books = self._books[flat]
        scores = torch.empty((len(flat), BLOCK_ROWS), dtype=torch.float32, device=self._device)
        chunk = self._blocks.chunk_blocks(1, is_copied=True)
        askers = torch.arange(query_count, device=self._device).repeat_interleave(width)
        for start in range(0, len(flat), chunk):
            some = slice(start, start + chunk)
            columns = factors[askers[some]].unsqueeze(2)
            scores[some] = torch.bmm(self._operand(flat[some]), columns, **self._sums).squeeze(2)
            if bits is not None:
                scores[some].masked_fill_(self._are_hidden(books[some], bits), _NOTHING)
        lengths = books[:, 2] * are_asked.flatten()
        within = torch.arange(BLOCK_ROWS, device=self._device) < lengths.unsqueeze(1)
        scores.masked_fill_(~within, _NOTHING)
        top = scores.view(query_count, -1).topk(min(count, width * BLOCK_ROWS), 1)
        firsts = books[:, 1].view(query_count, width)
        rows = firsts.gather(1, top.indices // BLOCK_ROWS) + top.indices % BLOCK_ROWS
        estimates = (top.values - factors.float().sum(1, keepdim=True) * self._zero) * self._step
        return rows.masked_fill_(top.values == _NOTHING, -1), estimates

    def _are_hidden(self, books: Any, bits: Any) -> Any:
        """Returns which rows of blocks a mask hides, or no cluster has: (n, BLOCK_ROWS) bool."""
        places = torch.arange(BLOCK_ROWS, device=self._device)
        rows = books[:, 1:2] + places
        has_bit = bits[(rows >> 3).clamp_(max=len(bits) - 1)] >> (rows & 7) & 1
        return (has_bit == 0) | (places >= books[:, 2:3])

    def _operand(self, blocks: Any) -> Any:
        """Returns (n, BLOCK_ROWS, dim) of the blocks, as products take them.

        `blocks`: a slice, of which float16 numbers are not copied, or their numbers on the device.
        """
        return self._arena[blocks].to(self._computed)

    def _on_device(self, values: npt.NDArray[Any]) -> Any:
        # A copy: PyTorch warns of arrays that are read-only.
        return torch.from_numpy(np.array(values, order="C")).to(self._device)

    def close(self) -> None:
        """Frees the memory of the device."""
        del self._arena, self._books, self._landing, self._staging
        if self._device.type == "cuda":
            torch.cuda.empty_cache()
