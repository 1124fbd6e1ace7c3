"""Conformance suites that every implementation of one of minga's seams must pass."""

from __future__ import annotations

from minga.testing._network_suite import NETWORK_CHECKS, check_network
from minga.testing._recipe_suite import RECIPE_CHECKS, RecipeCase, RecipeViolation, check_recipe
from minga.testing._suite import MakeNetwork

__all__ = [
    "NETWORK_CHECKS",
    "RECIPE_CHECKS",
    "MakeNetwork",
    "RecipeCase",
    "RecipeViolation",
    "check_network",
    "check_recipe",
]
