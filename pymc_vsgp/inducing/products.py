r"""Products of two features, which are fewer than their pairs.

Those of two waves are sums of a few features of up to twice the frequency. So a variance
:math:`\phi(x)^\top C \phi(x)`, with C the covariance of M coefficients, is a sum of some
:math:`2^D M` features, and what data say of M coefficients together,
:math:`\sum_n s_n \phi(x_n) \phi(x_n)^\top`, is made of as many sums over the data. Where features
are one of a site times one of a time, products are two of a site times two of a time. Neither
takes :math:`N M^2` operations.
"""

from functools import lru_cache

import numpy as np
import scipy.sparse

__all__ = ["PairProducts", "Products"]


class Products:
    """Products of the features of one to three inputs, by the numbers of their frequencies."""

    def __init__(self, n_frequencies: tuple[int, ...]):
        self.each = [_products(k) for k in n_frequencies]
        self.sizes = [2 * k + 1 for k in n_frequencies]
        self.double = [4 * k + 1 for k in n_frequencies]

    def fold(self, C: np.ndarray) -> np.ndarray:
        """Return the weights of features of twice the frequency in ``phi^T C phi``."""
        D, sizes = len(self.sizes), self.sizes
        pairs = [axis for d in range(D) for axis in (d, D + d)]
        x = C.reshape(*sizes, *sizes).transpose(pairs)
        return self._along(x.reshape([n * n for n in sizes]), [T.T for T in self.each]).ravel()

    def unfold(self, w: np.ndarray) -> np.ndarray:
        """Return the matrix of ``w @ psi`` of all products: what `fold` is the transpose of."""
        D, sizes = len(self.sizes), self.sizes
        x = self._along(w.reshape(self.double), self.each)
        x = x.reshape([n for n in sizes for _ in range(2)])
        apart = [*range(0, 2 * D, 2), *range(1, 2 * D, 2)]
        return np.ascontiguousarray(x.transpose(apart)).reshape((int(np.prod(sizes)),) * 2)

    def _along(self, x, matrices):
        for T in matrices:  # the first axis comes last each time
            x = np.moveaxis((T @ x.reshape(len(x), -1)).reshape(-1, *x.shape[1:]), 0, -1)
        return x


class PairProducts:
    """Products of two features that are each one of a site times one of a time.

    Of two sites in either order there is one.
    """

    def __init__(self, n_sites: int, n_times: int):
        self.sizes = n_sites, n_times
        self.pairs = [np.triu_indices(n) for n in self.sizes]
        self.double = [len(i) for i, _ in self.pairs]

    def fold(self, C: np.ndarray) -> np.ndarray:
        """Return the weights of products in ``phi^T C phi``."""
        x = C.reshape(*self.sizes, *self.sizes).transpose(0, 2, 1, 3)
        (i, j), (k, m) = self.pairs
        x = x[i, j] + np.where(i == j, 0.0, 1.0)[:, None, None] * x[j, i]
        x = x[:, k, m] + np.where(k == m, 0.0, 1.0) * x[:, m, k]
        return x.ravel()

    def unfold(self, w: np.ndarray) -> np.ndarray:
        """Return the matrix of ``w @ psi`` of all products: what `fold` is the transpose of."""
        at = []
        for n, (i, j) in zip(self.sizes, self.pairs, strict=True):
            of = np.empty((n, n), dtype=int)
            of[i, j] = of[j, i] = np.arange(len(i))
            at.append(of)
        x = w.reshape(self.double)[at[0][:, :, None, None], at[1]]
        return x.transpose(0, 2, 1, 3).reshape((int(np.prod(self.sizes)),) * 2)


@lru_cache(maxsize=8)
def _products(k: int) -> scipy.sparse.csr_array:
    """Return the features of twice the frequency that products of two of one input are.

    The features are one, and cosines and sines times the root of two. With a row for each pair.
    """
    n, half = 2 * k + 1, 1.0 / np.sqrt(2.0)
    rows, columns, values = [], [], []

    def add(i, j, frequency, value, sine=False):
        if sine and frequency == 0:
            return
        rows.append(i * n + j)
        columns.append(abs(frequency) + 2 * k * sine)
        # The constant is one, and lacks the root of two.
        value *= 1.0 if frequency else np.sqrt(2.0)
        values.append(-value if sine and frequency < 0 else value)

    for i in range(n):
        add(0, i, i - k if i > k else i, 1.0 if i else half, sine=i > k)
        if i:
            add(i, 0, i - k if i > k else i, 1.0, sine=i > k)
    for a in range(1, k + 1):
        for b in range(1, k + 1):
            add(a, b, a - b, half)
            add(a, b, a + b, half)
            add(k + a, k + b, a - b, half)
            add(k + a, k + b, a + b, -half)
            for i, j in ((k + a, b), (b, k + a)):
                add(i, j, a + b, half, sine=True)
                add(i, j, a - b, half, sine=True)
    shape = n * n, 4 * k + 1
    return scipy.sparse.coo_array((values, (rows, columns)), shape=shape).tocsr()
