"""Codes of one row after the other, which depend on no centroid: `sq8` and `flat`.

`sq8` has 8 bits for each number: which of 255 equal parts of one fixed range it is in. `flat` has
the vectors themselves, float32 or float16.
"""

from __future__ import annotations

import math
from typing import Any

import faiss
import numpy as np
import numpy.typing as npt

from carpool.codes.codec import SQ8_REACH

_Float32 = npt.NDArray[np.float32]


def row_index(codec: str, nlist: int, dimension: int, number_bytes: int) -> Any:
    """Returns an index of FAISS with `nlist` empty lists. `number_bytes`: of `flat`, 2 or 4.

    A list is blocks of one code each: FAISS's lists without blocks keep the memory of what leaves.
    """
    quantizer: Any = faiss.IndexFlatIP(dimension)  # is never asked
    index: Any
    if codec == "flat" and number_bytes == 4:
        index = faiss.IndexIVFFlat(quantizer, dimension, nlist, faiss.METRIC_INNER_PRODUCT)
    else:
        kinds = faiss.ScalarQuantizer
        kind = kinds.QT_fp16 if codec == "flat" else kinds.QT_8bit_uniform
        index = faiss.IndexIVFScalarQuantizer(
            quantizer, dimension, nlist, kind, faiss.METRIC_INNER_PRODUCT, False
        )
    if codec == "sq8":
        reach = SQ8_REACH / math.sqrt(dimension)
        least_and_width = np.array([-reach, 2 * reach], np.float32)
        faiss.copy_array_to_vector(least_and_width, index.sq.trained)
    index.is_trained = True  # by the lines above, without data
    lists: Any = faiss.BlockInvertedLists(nlist, 1, index.code_size)  # type: ignore[attr-defined]
    index.replace_invlists(lists, True)
    for owned in (quantizer, lists):
        owned.this.disown()
    index.own_fields = True
    return index


def encode_rows(codec: str, vectors: npt.NDArray[np.floating], number_bytes: int) -> bytes:
    """Returns the codes of `vectors`, (n, dim) float32; of `flat` also float16.

    `number_bytes`: of `flat`, 2 or 4.
    """
    if codec == "flat":
        return vectors.astype(f"<f{number_bytes}", copy=False).tobytes()
    index = row_index(codec, 1, vectors.shape[1], number_bytes)  # owns what follows
    codes: npt.NDArray[np.uint8] = index.sq.compute_codes(vectors)
    return codes.tobytes()
