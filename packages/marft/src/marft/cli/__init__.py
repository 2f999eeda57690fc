"""Command-line interface ``marft`` and the Python API.

This package sets the wait policy of torch's CPU threads, because commands and the Python API pass here before torch is
imported. The threads of torch's pool synchronize thousands of times a training step. GNU OpenMP, which torch ships with
on Linux, lets them spin for milliseconds before they sleep. Spinning is fastest on a dedicated machine. On a shared
machine, a spinning thread takes the core from the thread that it waits for. ``benchmarks/shared_machine.py`` has the
figures.
"""

import os
from collections.abc import MutableMapping

SPIN_COUNT = "1000"  # a few microseconds
WAIT_POLICY_VARIABLES = ("GOMP_SPINCOUNT", "OMP_WAIT_POLICY")


def limit_spinning(environment: MutableMapping[str, str]) -> None:
    """Make OpenMP threads sleep after a short spin, unless the environment already sets a wait policy.

    The setting takes effect only before torch is imported.

    >>> environment = {}
    >>> limit_spinning(environment)
    >>> environment
    {'GOMP_SPINCOUNT': '1000'}

    Args:
        environment: environment variables, changed in place.
    """
    if not any(name in environment for name in WAIT_POLICY_VARIABLES):
        environment["GOMP_SPINCOUNT"] = SPIN_COUNT


limit_spinning(os.environ)
