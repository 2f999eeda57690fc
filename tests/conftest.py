"""What holds for all tests, wherever they run; what they share is in ``tests/fixtures.py``."""

from __future__ import annotations

import gc
import os
import signal
from importlib.util import find_spec
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

ROOT = Path(__file__).parents[1]
CORE = ("tests/marft", "packages/marft/src")

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


def pytest_addoption(parser: pytest.Parser) -> None:
    """Add the option with which CI leaves out what it has run in an environment of the core alone."""
    parser.addoption("--except-core", action="store_true", help="leave out tests of the core that need no satellite")


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Skip tests whose satellite is not installed; with ``--except-core`` leave out the other tests of the core."""
    kept, left_out = list[pytest.Item](), list[pytest.Item]()
    for item in items:
        needed = [mark.args[0] for mark in item.iter_markers("needs")]
        missing = [package for package in needed if find_spec(package) is None]
        if missing:
            item.add_marker(pytest.mark.skip(reason=f"needs {' and '.join(missing)}"))
        of_core = any(item.path.is_relative_to(ROOT / folder) for folder in CORE) and not needed
        (left_out if config.option.except_core and of_core else kept).append(item)
    if left_out:
        config.hook.pytest_deselected(items=left_out)
        items[:] = kept


def pytest_ignore_collect(collection_path: Path, config: pytest.Config) -> bool | None:
    """Where slow tests alone are asked for, files that have none are not even imported."""
    if config.option.markexpr != "slow" or collection_path.suffix != ".py":
        return None
    return "mark.slow" not in collection_path.read_text(encoding="utf-8") or None


SHARED_DATA = Path(__file__).parents[2] / "shared" / "data"
