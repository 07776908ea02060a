"""Codes of RaBitQ: 1 to 4 bits for each number of the difference from the centroid.

FAISS keeps the codes of a cluster in blocks of 32, each number of 32 vectors together, so that one
instruction looks up all of them (FastScan). The first bit of each number gives a bound; only
vectors that may be among the best are scored with all bits.
"""

from __future__ import annotations

from typing import Any

import faiss
import numpy as np
import numpy.typing as npt

from carpool.codes.codec import RABITQ_BITS

_Float32 = npt.NDArray[np.float32]

NEAREST_FIRST = 10
"""FAISS's scan of one query at a time, its clusters in the order given."""


def rabitq_index(codec: str, centroids: _Float32) -> Any:
    """Returns an index of FAISS over `centroids`, (nlist, dim) float32; its lists are empty."""
    nlist, dimension = centroids.shape
    quantizer: Any = faiss.IndexFlatIP(dimension)
    quantizer.add(np.ascontiguousarray(centroids))
    index: Any = faiss.IndexIVFRaBitQFastScan(
        quantizer, dimension, nlist, faiss.METRIC_INNER_PRODUCT, 32, True, RABITQ_BITS[codec]
    )
    quantizer.this.disown()
    index.own_fields = True
    index.is_trained = True  # there is nothing to train
    index.implem = NEAREST_FIRST
    return index


def encode_rabitq(codec: str, centroid: _Float32, vectors: _Float32) -> bytes:
    """Returns the codes of `vectors`, (n, dim) float32; `centroid`: (dim,). About 40,000 a s."""
    # One list with one centroid: FAISS then cannot put a vector into another cluster.
    index = rabitq_index(codec, centroid[None, :])
    index.add(vectors)
    lists: Any = faiss.downcast_InvertedLists(index.invlists)
    codes = np.empty(-(-len(vectors) // lists.n_per_block) * lists.block_size, np.uint8)
    faiss.memcpy(faiss.swig_ptr(codes), lists.get_codes(0), len(codes))
    return codes.tobytes()
