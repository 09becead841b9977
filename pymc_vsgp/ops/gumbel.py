"""The distribution function of a Gumbel variable plus an independent normal one.

It is ``E exp(-exp(-(x - f)))``. For a small variance of f a few Gauss-Hermite nodes give it; for
any variance, the Gumbel distribution as a mixture of normal ones.
"""

import numpy as np

# exp(-exp(-x)) = sum_i p_i Phi((x - m_i) / s_i). Largest error 1.2e-8, and no larger for f + G.
MIXTURE = np.array(
    [
        [7.8284214035e-05, -2.0074899250e00, 2.3347622435e-01],
        [1.3220835031e-03, -1.7161820939e00, 2.6366299994e-01],
        [1.3128008391e-02, -1.3953586898e00, 3.0031336671e-01],
        [6.7383162555e-02, -1.0185902455e00, 3.3026752363e-01],
        [7.6928530536e-02, -6.8954058023e-01, 3.2155420753e-01],
        [6.9115742362e-02, -4.1307874204e-01, 3.2841087106e-01],
        [7.2168840782e-02, -1.6664244634e-01, 3.5897686255e-01],
        [8.5183902718e-02, 6.2932996472e-02, 4.1578472034e-01],
        [7.5058949529e-02, 1.9594483765e-01, 4.8288661755e-01],
        [1.0427166455e-01, 4.1490016479e-01, 4.9981973022e-01],
        [7.6398903942e-02, 7.4277222500e-01, 5.3654504642e-01],
        [1.1704914441e-01, 1.0067885395e00, 6.2115889736e-01],
        [8.7108010217e-02, 1.4712153382e00, 7.0306271781e-01],
        [7.5161923174e-02, 1.9487515510e00, 8.3633643987e-01],
        [4.9263585980e-02, 2.5988463394e00, 9.9496422813e-01],
        [2.0780872794e-02, 3.4977256151e00, 1.1535866833e00],
        [7.1763713420e-03, 4.5375030005e00, 1.3511941340e00],
        [2.0494555935e-03, 5.7020602582e00, 1.6356078971e00],
        [3.4968380245e-04, 7.1526602386e00, 2.0365884080e00],
        [2.2879599918e-05, 8.9838655049e00, 2.6842278279e00],
    ]
).T
MIXTURE[0] /= MIXTURE[0].sum()
MEAN = np.float64(MIXTURE[0] @ MIXTURE[1])
N_POINTS = 64  # at least, and as many as the step needs: a Gumbel's density has a width of one
STEP, MOST_POINTS = 0.6, 4096
REACH = 6.0  # standard deviations of f
LEFT, RIGHT = np.float64(3.2), np.float64(18.5)  # where a Gumbel's tails are below 1e-8
TINY = 1e-14  # variances below this are treated as this


def _rule(n):
    nodes, weights = np.polynomial.hermite_e.hermegauss(n)
    return nodes, weights / weights.sum()


# Up to these variances that many nodes: errors below 2e-10, and 1e-8 in its derivatives.
RULES = {0.05: _rule(8), 0.12: _rule(12)}
