"""How the threads of torch's pool wait for each other on a CPU.

They meet thousands of times a training step. GNU OpenMP, which torch comes with on Linux, has them spin for
milliseconds before they sleep. That is fastest on a machine of one's own; on a shared one, a thread that spins takes
the core from the one that it waits for. ``benchmarks/shared_machine.py`` has the figures.
"""

from __future__ import annotations

from collections.abc import MutableMapping

SPINS = "1000"  # some microseconds
THEIRS = ("GOMP_SPINCOUNT", "OMP_WAIT_POLICY")


def wait_briefly(environment: MutableMapping[str, str]) -> None:
    """Have threads sleep after a short wait, unless somebody has said otherwise. Takes effect where torch has not been
    imported yet.

    >>> environment = {}
    >>> wait_briefly(environment)
    >>> environment
    {'GOMP_SPINCOUNT': '1000'}
    """
    if not any(name in environment for name in THEIRS):
        environment["GOMP_SPINCOUNT"] = SPINS
