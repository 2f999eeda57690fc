"""Who starts the processes of a run: this machine, or a cluster."""

from __future__ import annotations

from typing import Literal

from marft.config.cluster import PlaceSettings
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


def asking(run: RunSettings, kind: Kind, gpus: float) -> RunSettings:
    """A recipe for a cluster of whose processes of a kind each asks for so many GPUs."""
    assert run.cluster is not None
    place: PlaceSettings = getattr(run.cluster, kind)
    cluster = run.cluster.model_copy(update={kind: place.model_copy(update={"gpus": gpus})})
    return run.model_copy(update={"cluster": cluster})
