"""Grouping policies: each a partition, greedy to the letter of Algorithm 1, agglomerative as Eq. 3
demands.
"""

from __future__ import annotations

import itertools
import subprocess
import sys
from fractions import Fraction

import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from grouper.plan.grouping import (
    LINKAGE_NAMES,
    POLICY_NAMES,
    Groups,
    LinkageName,
    PolicyName,
    grouping_policy,
)
from grouper.plan.jaccard import jaccard_matrix

Clusters = list[tuple[int, ...]]

WINDOWS = st.lists(
    st.lists(st.integers(0, 9), min_size=1, max_size=5, unique=True).map(tuple), max_size=16
)
THETAS = st.sampled_from([0.0, 0.1, 0.2, 0.25, 0.3, 1 / 3, 0.4, 0.5, 0.6, 2 / 3, 0.75, 0.8, 1.0])


def group(
    name: PolicyName, clusters: Clusters, theta: float = 0.5, linkage: LinkageName = "complete"
) -> Groups:
    return grouping_policy(name, jaccard_similarity_min=theta, linkage=linkage).group(
        jaccard_matrix(clusters)
    )


def jaccard(a: tuple[int, ...], b: tuple[int, ...]) -> float:
    return float(Fraction(len({*a} & {*b}), len({*a} | {*b})))


def algorithm_1(clusters: Clusters, theta: float) -> Groups:
    """Lines 3 to 19, line by line."""
    groups: list[list[int]] = []
    for i, c in enumerate(clusters):
        for g in groups:
            if max(jaccard(c, clusters[j]) for j in g) >= theta:
                g.append(i)
                break
        else:
            groups.append([i])
    return tuple(tuple(g) for g in groups)


@pytest.mark.parametrize("name", POLICY_NAMES)
def test_a_window_of_no_queries_has_no_groups_and_one_of_one_has_one(name: PolicyName) -> None:
    assert group(name, []) == ()
    assert group(name, [(3,)]) == ((0,),)


@pytest.mark.parametrize("name", POLICY_NAMES)
@given(clusters=WINDOWS, theta=THETAS)
def test_every_query_is_in_exactly_one_group(
    name: PolicyName, clusters: Clusters, theta: float
) -> None:
    groups = group(name, clusters, theta)
    assert sorted(itertools.chain(*groups)) == list(range(len(clusters)))
    assert all(list(members) == sorted(members) for members in groups), (
        "queries of a group keep their order"
    )
    assert [members[0] for members in groups] == sorted(members[0] for members in groups), (
        "groups by first query"
    )
    assert all(type(member) is int for members in groups for member in members)


@pytest.mark.parametrize("name", POLICY_NAMES)
@given(clusters=WINDOWS, theta=THETAS)
def test_the_same_window_gives_the_same_groups(
    name: PolicyName, clusters: Clusters, theta: float
) -> None:
    policy = grouping_policy(name, jaccard_similarity_min=theta)
    similarity = jaccard_matrix(clusters)
    before = similarity.copy()
    assert policy.group(similarity) == policy.group(similarity)
    assert np.array_equal(similarity, before), "the matrix is the caller's"


def test_per_window_and_per_query_ignore_similarity() -> None:
    assert group("per_window", [(1,), (2,), (3,)], theta=1.0) == ((0, 1, 2),)
    assert group("per_query", [(1,), (1,), (1,)], theta=0.0) == ((0,), (1,), (2,))


@pytest.mark.parametrize("name", ["greedy", "agglomerative"])
@pytest.mark.parametrize(
    ("shared", "of"), [(1, 2), (1, 3), (3, 10), (7, 10), (9, 10), (2, 3), (6, 7)]
)
def test_similarity_equal_to_the_threshold_joins(name: PolicyName, shared: int, of: int) -> None:
    clusters: Clusters = [tuple(range(of)), tuple(range(shared))]
    assert group(name, clusters, theta=shared / of) == ((0, 1),)
    assert group(name, clusters, theta=float(np.nextafter(shared / of, 2))) == ((0,), (1,))


def test_greedy_joins_the_first_group_that_fits_not_the_best() -> None:
    # The last shares 1/2 with the first and is equal to the second: first fit takes the first.
    clusters: Clusters = [(1, 2, 3, 4), (1, 2, 7, 8), (1, 2)]
    assert group("greedy", clusters) == ((0, 2), (1,))


def test_greedy_chains_queries_that_share_nothing() -> None:
    clusters: Clusters = [(1, 2), (1, 2, 3, 4), (3, 4)]
    assert jaccard(clusters[0], clusters[2]) == 0
    assert group("greedy", clusters) == ((0, 1, 2),)
    assert group("agglomerative", clusters) == ((0, 1), (2,))


def test_greedy_does_not_merge_groups_that_a_later_query_connects() -> None:
    clusters: Clusters = [(1, 2), (3, 4), (1, 2, 3, 4), (3, 4)]
    # The third joins the first group; the fourth then finds it there, in a group opened before its
    # own likeness's.
    assert group("greedy", clusters) == ((0, 2, 3), (1,))


@given(clusters=WINDOWS, theta=THETAS)
@example(clusters=[(0, 1, 2), (0,)], theta=1 / 3)
@example(clusters=[(0, 1, 2, 3, 4, 5, 6, 7, 8, 9), (0, 1, 2)], theta=0.3)
def test_greedy_equals_algorithm_1_line_by_line(clusters: Clusters, theta: float) -> None:
    assert group("greedy", clusters, theta) == algorithm_1(clusters, theta)


@given(clusters=WINDOWS, theta=THETAS)
@example(clusters=[(0, 1, 2, 3, 4, 5, 6, 7, 8, 9), (0, 1, 2)], theta=0.3)
def test_in_agglomerative_groups_every_pair_is_similar_enough(
    clusters: Clusters, theta: float
) -> None:
    """Eq. 3: J(qi, qj) >= theta for all members of a group (CaGR-RAG, section 3.2.1)."""
    for members in group("agglomerative", clusters, theta):
        for a, b in itertools.combinations(members, 2):
            assert jaccard(clusters[a], clusters[b]) >= theta


@given(clusters=WINDOWS, theta=THETAS)
def test_no_two_agglomerative_groups_could_be_one(clusters: Clusters, theta: float) -> None:
    """Clustering goes on as long as Eq. 3 lets it: complete linkage stops only where a merge would
    break it.
    """
    for one, other in itertools.combinations(group("agglomerative", clusters, theta), 2):
        assert any(jaccard(clusters[a], clusters[b]) < theta for a in one for b in other)


@pytest.mark.parametrize("linkage", LINKAGE_NAMES)
@given(clusters=WINDOWS, theta=THETAS)
def test_whatever_the_linkage_it_gives_a_partition_in_order(
    linkage: LinkageName, clusters: Clusters, theta: float
) -> None:
    groups = group("agglomerative", clusters, theta, linkage)
    assert sorted(itertools.chain(*groups)) == list(range(len(clusters)))
    assert all(list(members) == sorted(members) for members in groups)
    assert [members[0] for members in groups] == sorted(members[0] for members in groups)


@given(clusters=WINDOWS, theta=THETAS)
def test_single_linkage_gives_the_chains_of_neighbours(clusters: Clusters, theta: float) -> None:
    """Connected components of J >= theta: the dumb version joins labels until nothing changes."""
    label = list(range(len(clusters)))
    for _ in clusters:
        for a, b in itertools.combinations(range(len(clusters)), 2):
            if jaccard(clusters[a], clusters[b]) >= theta:
                label[a] = label[b] = min(label[a], label[b])
    expected: dict[int, list[int]] = {}
    for position, of in enumerate(label):
        expected.setdefault(of, []).append(position)
    assert group("agglomerative", clusters, theta, "single") == tuple(map(tuple, expected.values()))


@given(clusters=WINDOWS, theta=THETAS)
def test_average_linkage_stops_where_no_two_groups_are_alike_enough_in_the_mean(
    clusters: Clusters, theta: float
) -> None:
    def mean(one: tuple[int, ...], other: tuple[int, ...]) -> float:
        return sum(jaccard(clusters[a], clusters[b]) for a in one for b in other) / (
            len(one) * len(other)
        )

    groups = group("agglomerative", clusters, theta, "average")
    for one, other in itertools.combinations(groups, 2):
        assert mean(one, other) < theta + 1e-8
    for members in groups:
        if len(members) == 2:
            assert jaccard(clusters[members[0]], clusters[members[1]]) >= theta


def test_linkages_differ_on_a_chain() -> None:
    # Neighbours share 1/2 and 3/4, the ends 1/4: their mean with the pair in the middle is 3/8.
    clusters: Clusters = [(1, 2), (1, 2, 3, 4), (2, 3, 4), (9,)]
    found = {linkage: group("agglomerative", clusters, 0.375, linkage) for linkage in LINKAGE_NAMES}
    assert found["complete"] == ((0,), (1, 2), (3,))
    assert found["average"] == found["single"] == ((0, 1, 2), (3,))
    assert group("agglomerative", clusters, 0.376, "average") == ((0,), (1, 2), (3,))
    assert group("agglomerative", clusters, 0.376, "single") == ((0, 1, 2), (3,))


@pytest.mark.parametrize("linkage", LINKAGE_NAMES)
@pytest.mark.parametrize(
    ("shared", "of"), [(1, 2), (1, 3), (3, 10), (7, 10), (9, 10), (2, 3), (6, 7)]
)
def test_whatever_the_linkage_similarity_equal_to_the_threshold_joins(
    linkage: LinkageName, shared: int, of: int
) -> None:
    clusters: Clusters = [tuple(range(of)), tuple(range(shared))]
    assert group("agglomerative", clusters, shared / of, linkage) == ((0, 1),)
    assert group("agglomerative", clusters, shared / of + 1e-6, linkage) == ((0,), (1,))


@pytest.mark.parametrize("name", ["greedy", "agglomerative"])
def test_the_ends_of_the_threshold_group_everything_and_only_equals(name: PolicyName) -> None:
    clusters: Clusters = [(1, 2), (3,), (2, 1), (4,)]
    assert group(name, clusters, theta=0.0) == ((0, 1, 2, 3),)
    assert group(name, clusters, theta=1.0) == ((0, 2), (1,), (3,))
    assert group(name, clusters, theta=1e-300) == ((0, 2), (1,), (3,)), (
        "what shares nothing is below any threshold"
    )


def test_scikit_learn_is_loaded_only_for_agglomerative() -> None:
    code = (
        "import sys; from grouper.plan.grouping import grouping_policy as p; p('greedy', "
        "jaccard_similarity_min=0.5); assert 'sklearn' not in sys.modules; p('agglomerative', "
        "jaccard_similarity_min=0.5); assert 'sklearn' in sys.modules"
    )
    subprocess.run([sys.executable, "-c", code], check=True)
