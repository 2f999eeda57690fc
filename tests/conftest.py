"""What holds for all tests, wherever they run; what they share is in ``tests/fixtures.py``."""

from __future__ import annotations

import gc
import os
import signal
from pathlib import Path

os.environ.setdefault("HF_HUB_OFFLINE", "1")
os.environ.setdefault("OMP_NUM_THREADS", "1")

import pytest
from hypothesis import HealthCheck, Phase, settings

settings.register_profile("marft", deadline=None, derandomize=True, max_examples=30)
settings.register_profile(  # for `make mutants`: the first failure is enough, however slow the machine
    "mutants", settings.get_profile("marft"), max_examples=100, phases=[Phase.explicit, Phase.generate], database=None,
    suppress_health_check=list(HealthCheck), report_multiple_bugs=False,
)  # fmt: skip
settings.register_profile("nightly", deadline=None, max_examples=1000)
settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE", "marft"))
signal.signal(signal.SIGINT, signal.default_int_handler)  # what a shell starts in the background ignores it

# scripts of a skill, which run in the sandbox; packages that other Pythons import
collect_ignore_glob = [
    "skill_example/*",
    "toolsandbox_fake/*",
    "toolsandbox_real/*",
    "verifiers_fake/*",
    "verifiers_real/*",
]


def pytest_collection_finish() -> None:
    """What was imported by now stays: nothing of it is looked at again whenever garbage is collected."""
    gc.collect()
    gc.freeze()


def pytest_configure(config: pytest.Config) -> None:
    """Load what tests share where tests run: a process that hands them out to others needs no torch."""
    if hasattr(config, "workerinput") or not config.getoption("numprocesses", None):
        from tests import fixtures

        config.pluginmanager.register(fixtures, "tests.fixtures")


def pytest_ignore_collect(collection_path: Path, config: pytest.Config) -> bool | None:
    """Where slow tests alone are asked for, files that have none are not even imported."""
    if config.option.markexpr != "slow" or collection_path.suffix != ".py":
        return None
    return "mark.slow" not in collection_path.read_text(encoding="utf-8") or None


SHARED_DATA = Path(__file__).parents[2] / "shared" / "data"
