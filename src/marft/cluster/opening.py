"""Who starts the processes of a run: this machine, or a cluster."""

from __future__ import annotations

from typing import Literal

from marft.config.run import RunSettings
from marft.processes.starting import LocalStarter, Starter

Kind = Literal["worker", "engine", "learner"]


def open_starter(run: RunSettings, kind: Kind, count: int) -> Starter:
    """What starts ``count`` processes of a kind, where the recipe has them. Close it.

    Raises:
        ValueError: the cluster cannot be joined.
        RunError: it has no room for them.
    """
    if run.cluster is None:
        return LocalStarter()
    from marft.cluster.starter import RayStarter  # Ray, which nothing else needs

    return RayStarter(run, run.cluster, kind, count)
