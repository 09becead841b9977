"""Marks of single values of a parameter."""

import pytest


def long(*values):
    """Leave these values, each one parameter or a tuple of several, to `make test-all`."""
    return [
        pytest.param(*(value if isinstance(value, tuple) else (value,)), marks=pytest.mark.long)
        for value in values
    ]
