"""Where to put the inducing points."""

import numpy as np
import pandas as pd
import pymc as pm
import pytensor.tensor as pt
import pytest

from pytensor.tensor.random.op import RandomVariable

from pymc_vsgp.inducing.placement import greedy_variance, grid, kmeans, subset

KERNEL = pm.gp.cov.Matern32(2, ls=[0.5, 1.0])


def greedy(X, M, *, random_seed=None):
    return greedy_variance(X, M, KERNEL, random_seed=random_seed)


PLACEMENTS = [kmeans, greedy, subset]


@pytest.fixture
def X():
    return np.random.default_rng(20).normal(size=(60, 2)) * [1.0, 5.0] + [2.0, -3.0]


def as_set(rows):
    return set(map(tuple, rows))


@pytest.mark.parametrize("place", PLACEMENTS)
class TestEveryPlacement:
    @pytest.mark.parametrize("M", [1, 7, 59, 60])
    def test_as_many_distinct_rows_as_asked_for(self, place, X, M):
        Xu = place(X, M, random_seed=1)
        assert Xu.shape == (M, 2)
        assert Xu.dtype == np.float64
        assert len(as_set(Xu)) == M

    def test_as_many_points_as_rows_are_the_rows(self, place, X):
        assert as_set(place(X, len(X), random_seed=1)) == as_set(X)

    def test_inside_the_range_of_the_data(self, place, X):
        Xu = place(X, 12, random_seed=1)
        assert (Xu >= X.min(axis=0)).all()
        assert (Xu <= X.max(axis=0)).all()

    def test_seed(self, place, X):
        first = place(X, 9, random_seed=3)
        np.testing.assert_array_equal(first, place(X, 9, random_seed=3))
        generator = np.random.default_rng(3)
        np.testing.assert_array_equal(first, place(X, 9, random_seed=generator))
        assert as_set(first) != as_set(place(X, 9, random_seed=4))

    def test_input_is_left_alone(self, place, X):
        before = X.copy()
        place(X, 9, random_seed=3)[:] = 0.0
        np.testing.assert_array_equal(X, before)

    @pytest.mark.parametrize("M", [1, 5])
    def test_repeated_rows(self, place, X, M):
        repeated = np.repeat(X[:5], [1, 40, 2, 1, 7], axis=0)
        assert len(as_set(place(repeated, M, random_seed=1))) == M

    def test_too_few_distinct_rows(self, place, X):
        repeated = np.tile(X[:4], (10, 1))
        with pytest.raises(ValueError, match="4 distinct rows, 8 inducing points.*at most 4"):
            place(repeated, 8, random_seed=1)

    def test_more_points_than_rows(self, place, X):
        with pytest.raises(ValueError, match="60 distinct rows, 61 inducing points"):
            place(X, 61, random_seed=1)

    @pytest.mark.parametrize("M", [0, -2, 2.5])
    def test_impossible_number_of_points(self, place, X, M):
        with pytest.raises(ValueError, match="M is .*whole number, 1 or more"):
            place(X, M)

    def test_containers(self, place, X):
        expected = place(X, 6, random_seed=1)
        frame = pd.DataFrame(X, columns=["east", "north"])
        np.testing.assert_array_equal(place(frame, 6, random_seed=1), expected)
        with pm.Model():
            data = pm.Data("X", X)
            np.testing.assert_array_equal(place(data, 6, random_seed=1), expected)

    def test_constant_column(self, place, X):
        # 0.1 is not a binary fraction: the column's mean and spread are off by rounding.
        X[:, 1] = 0.1
        Xu = place(X, 8, random_seed=1)
        assert len(as_set(Xu)) == 8
        np.testing.assert_array_equal(Xu[:, 1], 0.1)


class TestKmeans:
    def test_units_do_not_matter(self, X):
        # Powers of two scale without rounding.
        scale = np.array([2.0**-20, 2.0**12])
        expected = kmeans(X, 8, random_seed=1) * scale
        np.testing.assert_allclose(kmeans(X * scale, 8, random_seed=1), expected, rtol=1e-10)

    def test_finds_separate_clusters(self):
        rng = np.random.default_rng(5)
        middle = np.array([[0.0, 0.0], [10.0, 0.0], [0.0, 10.0]])
        rows = np.repeat(middle, 50, axis=0) + 0.1 * rng.normal(size=(150, 2))
        Xu = kmeans(rows, 3, random_seed=2)
        expected = rows.reshape(3, 50, 2).mean(axis=1)
        np.testing.assert_allclose(Xu[np.lexsort(Xu.T)], expected[np.lexsort(expected.T)])

    def test_centres_are_means_of_the_nearest_rows(self, X):
        Xu = kmeans(X, 6, random_seed=1)
        scale = X.std(axis=0)
        distance = (((X[:, None] - Xu) / scale) ** 2).sum(axis=-1)
        nearest = distance.argmin(axis=1)
        means = [X[nearest == m].mean(axis=0) for m in range(6)]
        np.testing.assert_allclose(Xu, means)

    def test_weights_are_repeats(self, X):
        # The same cluster structure, so the same seeds and centres, either way.
        count = np.random.default_rng(2).integers(0, 4, size=len(X))
        weighted = kmeans(X, 5, random_seed=1, weights=count)
        repeated = kmeans(np.repeat(X, count, axis=0), 5, random_seed=1)
        np.testing.assert_allclose(weighted, repeated)

    def test_rows_without_weight_are_left_out(self, X):
        weights = np.zeros(len(X))
        weights[:3] = 1.0
        assert as_set(kmeans(X, 3, weights=weights)) == as_set(X[:3])
        with pytest.raises(ValueError, match="3 distinct rows with a positive weight"):
            kmeans(X, 4, weights=weights)

    @pytest.mark.parametrize(
        "weights, message",
        [
            (np.ones(3), r"shape \(3,\), X has 60 rows"),
            (-np.ones(60), "holds -1.0"),
            (np.full(60, np.nan), "holds nan"),
        ],
    )
    def test_wrong_weights(self, X, weights, message):
        with pytest.raises(ValueError, match=message):
            kmeans(X, 4, weights=weights)

    def test_many_rows(self):
        rows = np.random.default_rng(1).normal(size=(50_000, 1))
        Xu = kmeans(rows, 5, random_seed=1)
        np.testing.assert_array_equal(Xu, kmeans(rows, 5, random_seed=1))
        # The best five centres of a standard normal (Max 1960, table I).
        np.testing.assert_allclose(np.sort(Xu[:, 0]), [-1.72, -0.76, 0.0, 0.76, 1.72], atol=0.1)

    def test_rare_rows_of_many(self):
        # A random choice of 20000 rows misses the rare ones, which are needed here.
        rows = np.zeros((50_000, 1))
        rows[:6, 0] = np.arange(6)
        assert as_set(kmeans(rows, 6, random_seed=1)) == as_set(rows[:6])

    def test_rows_that_differ_by_rounding(self):
        # Their distances underflow next to the far row, yet every centre is another number.
        rows = np.append(1.0 + np.arange(20) * np.finfo("float64").eps, 1e9)[:, None]
        for M in (2, 10, 20):
            assert len(as_set(kmeans(rows, M, random_seed=1))) == M


class TestGreedyVariance:
    @pytest.mark.parametrize("seed", [None, 4])
    def test_nested(self, X, seed):
        most = greedy(X, 20, random_seed=seed)
        for m in (1, 5, 13):
            np.testing.assert_array_equal(greedy(X, m, random_seed=seed), most[:m])

    @pytest.mark.parametrize(
        "kernel",
        [
            KERNEL,
            2.5 * pm.gp.cov.ExpQuad(2, ls=2.0),
            pm.gp.cov.Linear(2, c=[1.0, 0.0]) + pm.gp.cov.Matern52(2, ls=1.0),
            pm.gp.cov.Matern52(2, ls=1.0) + pm.gp.cov.WhiteNoise(0.3),
        ],
        ids=["matern", "scaled", "nonstationary", "noise"],
    )
    def test_each_point_has_the_most_variance_left(self, X, kernel):
        K = kernel(X).eval()
        scale = K.diagonal().max()
        Xu = greedy_variance(X, 10, kernel)
        rows = [int(np.flatnonzero((X == z).all(axis=1))[0]) for z in Xu]
        for m in range(10):
            left = K.diagonal().copy()
            if m:
                known = rows[:m]
                cross = K[known]
                left -= (cross * np.linalg.solve(K[np.ix_(known, known)], cross)).sum(axis=0)
            assert left[rows[m]] == pytest.approx(left.max(), abs=1e-9 * scale)

    def test_beats_random_rows(self, X):
        kernel = pm.gp.cov.ExpQuad(2, ls=[1.0, 5.0])
        K = kernel(X).eval()

        def left(Xu):
            rows = [int(np.flatnonzero((X == z).all(axis=1))[0]) for z in Xu]
            cross = K[rows]
            return K.trace() - (cross * np.linalg.solve(K[np.ix_(rows, rows)], cross)).sum()

        random = min(left(subset(X, 25, random_seed=s)) for s in range(10))
        assert left(greedy_variance(X, 25, kernel)) < random

    def test_exhausted_variance(self, X):
        flat = pm.gp.cov.ExpQuad(2, ls=1e3)
        with pytest.raises(ValueError, match="asked for. Ask for at most") as error:
            greedy_variance(X, 40, flat)
        useful = int(str(error.value).split()[0])
        assert len(greedy_variance(X, useful, flat)) == useful
        assert len(greedy_variance(X, useful + 1, flat, threshold=1e-13)) == useful + 1

    def test_linear_kernel_has_finite_rank(self, X):
        with pytest.raises(ValueError, match="^2 points leave"):
            greedy_variance(X, 3, pm.gp.cov.Linear(2, c=0.0))

    def test_parameters_by_name(self, X):
        with pm.Model() as model:
            scale = pm.Gamma("scale", 2, 1, initval=0.3)
            level = pm.Normal("level", 1.0, 1.0)
            variance = pm.LogNormal("variance", level, 1.0)
            double = pm.Deterministic("double", 2 * scale)
        kernel = variance * pm.gp.cov.Matern52(2, ls=double)

        def at(ls):
            return greedy_variance(X, 10, pm.gp.cov.Matern52(2, ls=ls))

        # Gamma(2, 1) starts at its mean, and initval is known to the model only.
        np.testing.assert_array_equal(greedy_variance(X, 10, kernel), at(4.0))
        with model:
            np.testing.assert_array_equal(greedy_variance(X, 10, kernel), at(0.6))
            draw = {"scale": 0.1, "variance": 3.0, "other": 1.0}
            np.testing.assert_array_equal(greedy_variance(X, 10, kernel, point=draw), at(0.2))
        # The name nearest to the kernel counts.
        nearest = {"scale": 0.1, "double": 5}
        np.testing.assert_array_equal(greedy_variance(X, 10, kernel, point=nearest), at(5.0))

    def test_one_lengthscale_a_column(self, X):
        with pm.Model():
            ls = pm.Gamma("ls", 2, 1, shape=2)
        kernel = pm.gp.cov.Matern32(2, ls=ls)
        Xu = greedy_variance(X, 10, kernel, point={"ls": [0.5, 1.0]})
        np.testing.assert_array_equal(Xu, greedy(X, 10))
        with pytest.raises(ValueError, match=r"point\['ls'\] has shape \(\).*has 1 dimensions"):
            greedy_variance(X, 10, kernel, point={"ls": 0.5})

    def test_shared_parameters(self, X):
        with pm.Model():
            ls = pm.Data("ls", [0.5, 1.0])
        np.testing.assert_array_equal(
            greedy_variance(X, 10, pm.gp.cov.Matern32(2, ls=ls)), greedy(X, 10)
        )

    @pytest.mark.parametrize("cov_func", [len, None, 1.0, lambda *X: X[0]])
    def test_what_is_no_kernel(self, X, cov_func):
        with pytest.raises(TypeError, match="not a covariance function. Pass one of pm.gp.cov"):
            greedy_variance(X, 3, cov_func)

    def test_parameter_without_value(self, X):
        ls = pt.scalar("ls", dtype="float64")
        kernel = pm.gp.cov.Matern32(2, ls=ls)
        with pytest.raises(ValueError, match="depends on 'ls', which has no value"):
            greedy_variance(X, 3, kernel)
        assert len(greedy_variance(X, 3, kernel, point={"ls": 1.0})) == 3

    def test_parameter_without_typical_value(self, X):
        class Untypical(RandomVariable):
            """PyMC has no support point for it."""

            name = "untypical"
            signature = "()->()"
            dtype = "float64"

        rng = pt.random.shared_rng(seed=1)
        ls = Untypical()(0.0, rng=rng, return_next_rng=True)[1]
        ls.name = "ls"
        with pytest.raises(ValueError, match="'ls' of cov_func has no typical value"):
            greedy_variance(X, 3, pm.gp.cov.Matern32(2, ls=ls))

    @pytest.mark.parametrize(
        "kernel, error, message",
        [
            ("matern", TypeError, "cov_func is of type str"),
            (pm.gp.cov.ExpQuad(3, ls=1.0), ValueError, "takes 3 columns, X has 2"),
            (pm.gp.cov.ExpQuad(2, ls=np.nan), ValueError, "kernel's covariance is nan"),
            (np.nan * pm.gp.cov.ExpQuad(2, ls=1.0), ValueError, "kernel's variance is nan"),
            (0.0 * pm.gp.cov.ExpQuad(2, ls=1.0), ValueError, "variance is at most 0"),
        ],
    )
    def test_wrong_kernel(self, X, kernel, error, message):
        with pytest.raises(error, match=message):
            greedy_variance(X, 3, kernel)

    def test_wrong_threshold(self, X):
        with pytest.raises(ValueError, match="threshold is -1"):
            greedy_variance(X, 3, KERNEL, threshold=-1)


@pytest.mark.parametrize("seed", [-1, 1.5, "a"])
@pytest.mark.parametrize("place", [subset, kmeans])
def test_wrong_seed(place, seed, X):
    with pytest.raises(ValueError, match=f"random_seed is {seed!r}. Pass a whole number, 0 or"):
        place(X, 3, random_seed=seed)


@pytest.mark.parametrize(
    ("weights", "message"),
    [
        (lambda n: np.ma.MaskedArray(np.ones(n), np.arange(n) == 0), "weights is a masked array"),
        (lambda n: np.ones(n) + 1j, "weights is of type ndarray, but numbers"),
        (lambda n: ["a"] * n, "weights is of type list, but numbers"),
    ],
)
def test_weights_that_are_no_numbers(weights, message, X):
    with pytest.raises(TypeError, match=message):
        kmeans(X, 3, weights=weights(len(X)))


class TestGrid:
    def test_product_of_columns(self, X):
        Xu = grid(X, [3, 4], margin=0.1)
        span = np.ptp(X, axis=0)
        np.testing.assert_allclose(Xu.min(axis=0), X.min(axis=0) - 0.1 * span)
        np.testing.assert_allclose(Xu.max(axis=0), X.max(axis=0) + 0.1 * span)
        assert len(as_set(Xu)) == 12
        assert [len(np.unique(column)) for column in Xu.T] == [3, 4]

    @pytest.mark.parametrize("columns, n, total", [(1, 30, 30), (2, 15, 225), (3, 25, 15_625)])
    def test_one_number_for_all_columns(self, columns, n, total):
        rows = np.random.default_rng(1).normal(size=(10, columns))
        assert grid(rows, n).shape == (total, columns)

    def test_one_point_is_in_the_middle(self):
        np.testing.assert_array_equal(grid([[0.0, 7.0], [4.0, 7.0]], [3, 1])[:, 1], 7.0)
        np.testing.assert_array_equal(grid([[0.0], [4.0]], 1), [[2.0]])

    def test_data_containers(self, X):
        expected = grid(X, 3)
        np.testing.assert_array_equal(grid(pd.DataFrame(X), 3), expected)
        with pm.Model():
            np.testing.assert_array_equal(grid(pm.Data("X", X), 3), expected)

    @pytest.mark.parametrize(
        "n, margin, error, message",
        [
            ([3, 3, 3], 0.0, ValueError, "n has 3 entries, X has 2 columns"),
            (0, 0.0, ValueError, "n is 0"),
            (2.5, 0.0, ValueError, "n is 2.5"),
            (3, -0.5, ValueError, "margin is -0.5"),
            (3, np.nan, ValueError, "margin is nan"),
            (3, "a", ValueError, "margin is 'a'"),
        ],
    )
    def test_wrong_arguments(self, X, n, margin, error, message):
        with pytest.raises(error, match=message):
            grid(X, n, margin=margin)

    def test_constant_column(self, X):
        X[:, 1] = 0.1
        with pytest.raises(ValueError, match="Column 1 of X runs from 0.1 to 0.1"):
            grid(X, 3)
        assert grid(X, [3, 1]).shape == (3, 2)

    @pytest.mark.parametrize("columns, n", [(4, 11), (20, 50)])
    def test_too_many_points(self, columns, n):
        rows = np.random.default_rng(1).normal(size=(10, columns))
        with pytest.raises(ValueError, match=f"has {n**columns} points, more than 10000"):
            grid(rows, n)
