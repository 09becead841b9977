"""Columns of inducing inputs that the mean uses and the kernel does not."""

from typing import NamedTuple

import numpy as np

from pytensor.compile.sharedvalue import SharedVariable
from scipy.spatial import cKDTree

from pymc_vsgp.checks import ENTRIES


class Covariates(NamedTuple):
    """Columns of inducing inputs that the mean uses and the kernel does not.

    Coordinates and q of u follow m(Xu) as the parameters of the mean move. They are good where
    m(Xu) moves as the mean of the data nearby does, so averages of these are what to put there.
    """

    Xu: SharedVariable
    columns: np.ndarray
    of_kernel: np.ndarray
    sums: np.ndarray
    counts: np.ndarray

    @classmethod
    def of(cls, Xu, of_kernel) -> "Covariates | None":
        """Return the columns, if there are any."""
        value = Xu.get_value(borrow=True)
        of_kernel = np.asarray(of_kernel, dtype=int)
        columns = np.setdiff1d(np.arange(value.shape[1]), of_kernel)
        if not columns.size:
            return None
        sums = np.zeros((len(value), len(columns)))
        return cls(Xu, columns, of_kernel, sums, np.zeros(len(value)))

    def fill(self, X: np.ndarray) -> None:
        """Put averages over all rows that were given into the inducing inputs."""
        Xu, at = self.Xu.get_value(), self.of_kernel
        scale = np.std(X[:, at], axis=0)
        scale = np.where(scale > 0.0, scale, 1.0)
        _, nearest = cKDTree(Xu[:, at] / scale).query(X[:, at] / scale)
        step = max(1, ENTRIES // len(self.columns))
        for i in range(0, len(X), step):
            some = slice(i, i + step)
            np.add.at(self.sums, nearest[some], X[some, self.columns])
        np.add.at(self.counts, nearest, 1.0)
        # Where no row is nearest, that of the point whose row is.
        _, row = cKDTree(X[:, at] / scale).query(Xu[:, at] / scale)
        source = np.where(self.counts > 0.0, np.arange(len(Xu)), nearest[row])
        Xu[:, self.columns] = (self.sums / np.maximum(self.counts, 1.0)[:, None])[source]
        self.Xu.set_value(Xu)
