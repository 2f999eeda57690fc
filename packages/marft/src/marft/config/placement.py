"""Where processes of a run are started: on this machine, or on the cluster that its recipe names."""

from __future__ import annotations

from abc import abstractmethod
from typing import TYPE_CHECKING, Literal

from marft.common.processes.starting import LocalStarter, Starter
from marft.config.sections import Section

if TYPE_CHECKING:
    from marft.config.run import RunSettings

Kind = Literal["worker", "engine", "learner"]  # of a process


class Cluster(Section):
    """Base of the settings of a cluster, which starts a run's processes on other machines."""

    @abstractmethod
    def gpus_of(self, kind: Kind) -> float:
        """Return how many GPUs the recipe asks for, for each process of a kind."""

    @abstractmethod
    def open_starter(self, run: RunSettings, kind: Kind, count: int, gpus: float | None = None) -> Starter:
        """Return a starter of ``count`` processes of a kind. Close it.

        Args:
            gpus: that each process asks for; None: as many as the recipe says.

        Raises:
            ValueError: the cluster cannot be joined.
            RunError: it has no room for them.
        """


def cluster_of(run: RunSettings) -> Cluster | None:
    """Return the cluster of a run; None where all its processes are on this machine."""
    return next((section for section in run.sections if isinstance(section, Cluster)), None)


def open_starter(run: RunSettings, kind: Kind, count: int, gpus: float | None = None) -> Starter:
    """Return a starter of ``count`` processes of a kind, on this machine unless the run has a cluster. Close it.

    Args:
        gpus: that each process on a cluster asks for; None: as many as the recipe says.

    Raises:
        ValueError: the cluster cannot be joined.
        RunError: it has no room for them.
    """
    cluster = cluster_of(run)
    return cluster.open_starter(run, kind, count, gpus) if cluster else LocalStarter()
