"""Marks of tests of the core that use a satellite: they are skipped where it is not installed."""

from __future__ import annotations

import pytest

NEEDS_ENVS = pytest.mark.needs("marft_envs")
NEEDS_LAB = pytest.mark.needs("marft_lab")
NEEDS_SERVE = pytest.mark.needs("marft_serve")
