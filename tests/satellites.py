"""Marks of tests of the core that use a satellite: they are skipped where it is not installed."""

from __future__ import annotations

from importlib.util import find_spec

import pytest


def _needs(package: str) -> pytest.MarkDecorator:
    return pytest.mark.skipif(find_spec(package) is None, reason=f"needs {package}")


NEEDS_ENVS = _needs("marft_envs")
NEEDS_LAB = _needs("marft_lab")
