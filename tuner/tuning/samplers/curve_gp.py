"""A Gaussian process over configurations and steps, for learning curves.

k((x, t), (x', t')) = m(x, x') · (a² + b² · m(log t, log t')), plus c² if both points are of the same trial.

Here x is a configuration and t a step. m is the Matérn-5/2 kernel, with a length scale for each dimension of x. a models what all steps
of a configuration have in common, and b what changes along its curve. c models how much better or worse a trial is than its neighbours
at all steps. Such products are the kernels of freeze-thaw Bayesian optimisation (Swersky, Snoek & Adams, arXiv:1406.3896) and of FABOLAS
(Klein et al., 2017).

Hyperparameters maximise the marginal likelihood with log-normal priors (Rasmussen & Williams, 2006, chapter 5).

SciPy takes 0.6 s of processor time to import. Therefore `model` imports this module only when it first needs a fit.
"""

import numpy as np
import numpy.typing as npt
from scipy.linalg import cho_solve, solve_triangular
from scipy.optimize import minimize
from scipy.special import log_ndtr
from threadpoolctl import ThreadpoolController

from tuner.tuning.samplers.curves import Data

Floats = npt.NDArray[np.float64]
Ints = npt.NDArray[np.int64]
# Prior means of the logarithms of a, b, the length scale along log t, c, and the noise. In the parameter vector, these parameters
# come after the length scales of the dimensions.
PRIOR = np.log([0.7, 0.4, 1.0, 0.1, 0.03])
PRIOR_LENGTH = float(np.log(0.6))
BOUNDS = [(-3.0, 1.1), (-3.0, 1.1), (-2.3, 2.3), (-5.0, 0.5), (-5.8, -0.7)]
BOUNDS_LENGTH = (-3.0, 3.0)
JITTER = 1e-8
ITERATIONS = 15
# Limits the threads of BLAS (the linear algebra library) to one: for small matrices more threads are slower, and the last digits of
# results depend on their number. The controller must be created after SciPy has loaded BLAS.
THREADS = ThreadpoolController()


class CurveGP:
    """The Gaussian process for learning curves. Call `fit`, then `condition`, then `predict`. Predictions depend only on these calls."""

    def __init__(self, dimensions: int) -> None:
        self._d = dimensions
        self._prior = np.concatenate([np.full(dimensions, PRIOR_LENGTH), PRIOR])
        self._theta = self._prior.copy()

    def fit(self, data: Data) -> None:
        """Fit the hyperparameters, starting from those of the previous fit. It takes O(n³) for each of a few iterations."""
        bounds = [BOUNDS_LENGTH] * self._d + BOUNDS
        centred = Data(data.x, data.t, data.y - data.y.mean(), data.trial)
        options = {"maxiter": ITERATIONS}
        optimum = minimize(
            self._objective, self._theta, (centred,), "L-BFGS-B", jac=True, bounds=bounds, options=options
        )
        self._theta = optimum.x

    def condition(self, data: Data) -> None:
        self._data, self._mean = data, float(data.y.mean())
        k = self._kernel(data.x, data.t, data.trial)
        k[np.diag_indices_from(k)] += np.exp(2 * self._theta[-1]) + JITTER
        self._chol = np.linalg.cholesky(k)
        self._weights = cho_solve((self._chol, True), data.y - self._mean, check_finite=False)

    def predict(self, x: Floats, t: float, trial: Ints) -> tuple[Floats, Floats]:
        """Return the mean and the standard deviation (without noise) of the scores of `x` at the step whose logarithm is `t`, each of shape (n,).

        Args:
            x: Features of one configuration per row.
            trial: The number of the trial of each row of `x`. Shape (1,) if all rows have the same trial.
        """
        k = self._kernel(x, np.array([t]), trial)
        v = solve_triangular(self._chol, k.T, lower=True, check_finite=False)
        a, b, _, c = np.exp(2 * self._theta[self._d : self._d + 4])
        variance = a + b + c - np.einsum("ij,ij->j", v, v)
        return self._mean + k @ self._weights, np.sqrt(np.maximum(variance, 1e-10))

    def _kernel(self, x: Floats, t: Floats, trial: Ints) -> Floats:
        """Return the covariance between the points (x, t) of the trials `trial` and the data that the process is conditioned on."""
        lengths = np.exp(self._theta[: self._d])
        a, b, _, c = np.exp(2 * self._theta[self._d : self._d + 4])
        over_x = _matern(_distances(x / lengths, self._data.x / lengths))
        over_t = _matern((t[:, None] - self._data.t) ** 2 / np.exp(2 * self._theta[self._d + 2]))
        own = c * (trial[:, None] == self._data.trial)
        return np.asarray(over_x * (a + b * over_t) + own, dtype=np.float64)

    def _objective(self, theta: Floats, data: Data) -> tuple[float, Floats]:
        """Return the negative log posterior of the hyperparameters, and its gradient."""
        d, n = self._d, len(data.y)
        lengths = np.exp(theta[:d])
        a, b = np.exp(2 * theta[d : d + 2])
        scaled = data.x / lengths
        squares_x = _distances(scaled, scaled)
        over_x, slope_x = _matern(squares_x), _matern_slope(squares_x)
        squares_t = (data.t[:, None] - data.t) ** 2 / np.exp(2 * theta[d + 2])
        over_t, slope_t = _matern(squares_t), _matern_slope(squares_t)
        along = a + b * over_t
        same, noise = data.trial[:, None] == data.trial, np.exp(2 * theta[-1])
        own = np.exp(2 * theta[d + 3]) * same
        k = over_x * along + own
        k[np.diag_indices_from(k)] += noise + JITTER
        try:
            chol = np.linalg.cholesky(k)
        except np.linalg.LinAlgError:
            return 1e10, np.zeros_like(theta)
        inverse = cho_solve((chol, True), np.eye(n), check_finite=False)
        weights = inverse @ data.y
        value = 0.5 * data.y @ weights + np.log(np.diag(chol)).sum()
        w = inverse - np.outer(weights, weights)
        gradient = np.empty_like(theta)
        by_distance = slope_x * along * w
        # Σ_ij B_ij (x_i - x_j)² for symmetric B, without an array of the n × n × d differences, which would be large.
        sums = by_distance.sum(axis=1)
        gradient[:d] = -2 * (sums @ scaled**2 - np.einsum("id,id->d", scaled, by_distance @ scaled))
        gradient[d] = (w * over_x).sum() * a
        gradient[d + 1] = (w * over_x * over_t).sum() * b
        gradient[d + 2] = -(w * over_x * b * slope_t * squares_t).sum()
        gradient[d + 3] = (w * own).sum()
        gradient[d + 4] = np.trace(w) * noise
        off = theta - self._prior
        return float(value + 0.5 * off @ off), gradient + off


def log_expected_improvement(u: Floats) -> Floats:
    """Return the logarithm of the expected improvement in standard deviations: log(u·Φ(u) + φ(u)).

    `u` is the predicted mean minus the best score so far, in standard deviations of the prediction. The result is accurate even for u far below
    zero, where the terms cancel (Ament et al., arXiv:2310.20708).
    """
    log_density = -0.5 * u * u - 0.5 * np.log(2 * np.pi)
    with np.errstate(divide="ignore", invalid="ignore"):
        near = np.log(u * np.exp(log_ndtr(u)) + np.exp(log_density))
        far = log_density - 2 * np.log(np.abs(u))
    return np.asarray(np.where(u > -10, near, far), dtype=np.float64)


def _distances(x: Floats, y: Floats) -> Floats:
    """Return the squared distances between the rows of x and y."""
    squares = np.einsum("ij,ij->i", x, x)[:, None] + np.einsum("ij,ij->i", y, y) - 2 * x @ y.T
    return np.asarray(np.maximum(squares, 0.0), dtype=np.float64)


def _matern(squares: Floats) -> Floats:
    """Return the Matérn-5/2 kernel of squared distances, (1 + r + r² / 3) · exp(-r) with r² = 5 · squares.

    The arrays are changed in place. For the thousand candidates of a suggestion, allocating new arrays took more time than the arithmetic.
    """
    r = 5 * squares
    np.sqrt(r, out=r)
    kernel = r * r
    kernel /= 3
    kernel += 1 + r
    kernel *= np.exp(np.negative(r, out=r), out=r)
    return kernel


def _matern_slope(squares: Floats) -> Floats:
    """Return the derivative of the Matérn-5/2 kernel (`_matern`) with respect to the squared distances."""
    r = np.sqrt(5 * squares)
    return np.asarray(-(5 / 6) * (1 + r) * np.exp(-r), dtype=np.float64)
