"""The examples in the core's docstrings are true."""

from __future__ import annotations

import doctest
import importlib
import pkgutil

import pytest

from chmv_assets import core
from chmv_assets.core import picture

MODULES = sorted(
    f"{package.__name__}.{module.name}"
    for package in (core, picture)
    for module in pkgutil.iter_modules(package.__path__)
)


@pytest.mark.parametrize("name", [*MODULES, "chmv_assets.start"])
def test_examples_are_true(name: str) -> None:
    assert doctest.testmod(importlib.import_module(name), optionflags=doctest.NORMALIZE_WHITESPACE).failed == 0


def test_there_are_examples() -> None:
    finder = doctest.DocTestFinder(exclude_empty=True)
    found = [test for name in MODULES for test in finder.find(importlib.import_module(name)) if test.examples]
    assert len(found) >= 15
