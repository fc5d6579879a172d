"""What configs cost where nobody measured, from what they and their like cost nearby.

A single measurement says little about its neighbours: the winner of a scenario won by chance too. Two scenarios tell
of each other the more the nearer they are, and so do two configs: a Gaussian process whose covariance is the product
of both. As a product it needs two small matrices, and not one with a row per measurement.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from .columns import Columns, Values, values_of
from .costs import Costs, Matrix

__all__ = ["smoothed"]

_HOPELESS = 1.5
"""Times over the best from which on it does not matter how bad a config is."""

_BETWEEN_SCENARIOS = 1.5
_BETWEEN_CONFIGS = 2.0
"""How many steps away, halvings or doublings mostly, what is known has faded to a third."""

_NOISE = 0.05
"""How much of the variance is each measurement's own."""

_STEPS, _PRECISION = 300, 1e-6
_DIGITS = 5
"""Decimals that are kept, so that the last bits of a sum decide nothing."""


def smoothed(costs: Costs, columns: Columns, points: Sequence[Values]) -> Matrix:
    """[points, configs]: the logarithm of the slowdown that is to be expected; columns are those of the scenarios."""
    known = columns.places([values_of(scenario) for scenario in costs.scenarios])
    configs = [{**config.params, **config.options} for config in costs.configs]
    values = Columns(configs).places(configs)
    near, alike = _fading(known, known, _BETWEEN_SCENARIOS), _fading(values, values, _BETWEEN_CONFIGS)
    slowness: Matrix = np.log(np.minimum(costs.slowdown, _HOPELESS))
    usual = slowness[costs.tried].mean()
    weights = _solved(near, alike, costs.tried, np.where(costs.tried, slowness - usual, 0))
    expected: Matrix = usual + _fading(columns.places(points), known, _BETWEEN_SCENARIOS) @ weights @ alike
    return np.round(expected, _DIGITS)


def _fading(these: Matrix, those: Matrix, reach: float) -> Matrix:
    """[these, those]: 1 where they are the same, less the more steps lie between."""
    steps = np.abs(these[:, None] - those[None]).sum(axis=2)
    faded: Matrix = np.exp(-steps / reach)
    return faded


def _solved(near: Matrix, alike: Matrix, known: NDArray[np.bool_], wanted: Matrix) -> Matrix:
    """The weights of the measurements that explain what was measured, by conjugate gradients."""
    weights, rest = np.zeros_like(wanted), wanted
    direction, left = rest, float((rest**2).sum())
    enough = left * _PRECISION**2
    for _ in range(_STEPS):
        if left <= enough:
            break
        image = known * (near @ direction @ alike) + _NOISE * direction
        length = left / float((direction * image).sum())
        weights, rest = weights + length * direction, rest - length * image
        before, left = left, float((rest**2).sum())
        direction = rest + left / before * direction
    return weights
