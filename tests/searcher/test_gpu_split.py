"""The split of a GPU: the most questions a second, over any measured rates."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from carpool.errors import ConfigError
from searcher.plan.gpu_split import TIE_SHARE, Rates, choose_gpu_split

GIB = 1 << 30


@st.composite
def curves(draw: st.DrawFn, first_is_zero: bool) -> Rates:
    sizes = draw(st.sets(st.integers(1, 100), min_size=1, max_size=6))
    known = sorted(sizes | {0}) if first_is_zero else sorted(sizes)
    return [(size * GIB, draw(st.floats(0, 1000))) for size in known]


@given(curves(first_is_zero=False), curves(first_is_zero=True))
def test_no_split_of_a_sweep_answers_more(answers: Rates, searches: Rates) -> None:
    split = choose_gpu_split(answers, searches)
    assert split.kv_bytes + split.shard_bytes == answers[-1][0]
    assert split.kv_bytes >= answers[0][0]

    def least(shard_bytes: float) -> float:
        rates = []
        for curve, at in ((answers, answers[-1][0] - shard_bytes), (searches, shard_bytes)):
            sizes, per_s = zip(*curve, strict=True)
            rates.append(float(np.interp(at, sizes, np.maximum.accumulate(per_s))))
        return min(rates)

    swept = [least(one) for one in np.linspace(0, answers[-1][0] - answers[0][0], 101)]
    throughput = min(split.answers_per_s, split.searches_per_s)
    assert throughput == pytest.approx(least(split.shard_bytes))
    assert throughput >= max(swept) * (1 - TIE_SHARE) - 1e-9


def test_the_split_is_where_the_curves_meet() -> None:
    # 10 + 10 a GiB of the shard, 30 + 5 / 18 a GiB of the KV cache over 1.
    split = choose_gpu_split([(GIB, 30), (19 * GIB, 35)], [(0, 10), (4 * GIB, 50)])
    assert split.shard_bytes == pytest.approx(2.43 * GIB, rel=0.03)
    kept = choose_gpu_split([(GIB, 30), (19 * GIB, 35)], [(0, 10), (4 * GIB, 50)], GIB)
    assert kept.kv_bytes + kept.shard_bytes == 18 * GIB
    assert choose_gpu_split([(GIB, 30), (2 * GIB, 35)], [(0, 10)], GIB).kv_bytes == 2 * GIB


@pytest.mark.parametrize(
    ("answers", "searches"),
    [
        ([], [(0, 1)]),
        ([(2, 1), (1, 2)], [(0, 1)]),
        ([(1, 1)], [(5, 1)]),
        ([(1, float("nan"))], [(0, 1)]),
        ([(1, 1)], [(0, -1)]),
    ],
)
def test_what_is_no_curve_is_refused(answers: Rates, searches: Rates) -> None:
    with pytest.raises(ConfigError):
        choose_gpu_split(answers, searches)
