"""Settings for ``[cluster]``: a Ray cluster for the run's processes.

Reading the settings does not import Ray.
"""

from __future__ import annotations

from importlib.util import find_spec
from typing import TYPE_CHECKING, Annotated, ClassVar, Literal

from pydantic import Field, field_validator
from pydantic_core import PydanticCustomError

from marft.common.errors import UserError
from marft.common.packages import install_command
from marft.common.processes.launcher import Launcher
from marft.config.sections import Cluster, ProcessKind
from marft.config.settings import NonNegative, Positive, Settings

if TYPE_CHECKING:
    from marft.config.run import RunSettings

Amount = Annotated[float, Field(gt=0, le=100_000)]


class ResourceSettings(Settings):
    """Resources per process, in Ray's units."""

    cpus: Amount = Field(default=1.0, description="CPUs per process, and default number of compute threads")
    gpus: Annotated[float, Field(ge=0, le=1024)] = Field(
        default=0.0, description="GPUs per process; the process cannot see other GPUs"
    )
    memory_gb: NonNegative = Field(default=0.0, description="memory per process in GiB; 0: no reservation")
    resources: dict[str, Amount] = Field(
        default={}, description="custom Ray resources of the node, by the names given to `ray start`"
    )

    def bundle(self) -> dict[str, float]:
        """Return the resources as a bundle for a placement group."""
        amounts = {"CPU": self.cpus, "GPU": self.gpus, "memory": self.memory_gb * 2**30, **self.resources}
        return {name: amount for name, amount in amounts.items() if amount}


class ClusterSettings(Cluster):
    """Ray cluster for the run's processes: rollout workers, engines in their own process, and ranks except the first.

    Requires the extra ``ray``.
    """

    key: ClassVar[str] = "cluster"

    address: str = Field(
        default="",
        description=(
            'address of a cluster: host:port, or "auto" for this machine\'s cluster; "": $RAY_ADDRESS, else a new '
            "cluster on this machine for this run"
        ),
    )
    strategy: Literal["PACK", "SPREAD", "STRICT_PACK", "STRICT_SPREAD"] = Field(
        default="PACK", description="Ray's placement strategy for processes on nodes"
    )
    worker: ResourceSettings = Field(default=ResourceSettings(), description="resources of each rollout worker")
    engine: ResourceSettings = Field(
        default=ResourceSettings(),
        description="resources of each separate engine; GPU engines get at least one GPU, others exactly this number",
    )
    learner: ResourceSettings = Field(
        default=ResourceSettings(),
        description=(
            "resources of each rank except the first (the run's process); at least one GPU if ranks use GPUs, else none"
        ),
    )
    start_timeout_seconds: Positive = Field(
        default=60.0, description="timeout for free resources, and for the start of a process"
    )

    @field_validator("address")
    @classmethod
    def _reject_client_address(cls, address: str) -> str:
        if address.startswith("ray://"):
            raise PydanticCustomError(
                "address",
                "a run is on a machine of the cluster, and Ray's client ({address}) is not: give host:port there, or "
                "submit it (ray job submit -- marft train …)",
                {"address": address},
            )
        return address

    def resources_for(self, kind: ProcessKind) -> ResourceSettings:
        """Return the resources per process, for a given kind."""
        resources: dict[ProcessKind, ResourceSettings] = {
            "worker": self.worker,
            "engine": self.engine,
            "learner": self.learner,
        }
        return resources[kind]

    def gpus_for(self, kind: ProcessKind) -> float:
        """Return the recipe's number of GPUs per process, for a given kind."""
        return self.resources_for(kind).gpus

    def open_launcher(self, run: RunSettings, kind: ProcessKind, count: int, gpus: float | None = None) -> Launcher:
        """Return a launcher for ``count`` processes with reserved resources.

        Args:
            run: settings of the run.
            kind: kind of process.
            count: number of processes.
            gpus: GPUs per process; None for the recipe's number.

        Raises:
            UserError: Ray is not installed, or the cluster cannot be reached.
            RunError: the cluster has no free resources.
        """
        settings = self
        if gpus is not None:
            settings = self.model_copy(update={kind: self.resources_for(kind).model_copy(update={"gpus": gpus})})
        if find_spec("ray") is None:
            raise UserError(
                f"[cluster] needs Ray: {install_command('ray')}; without the table processes are started here"
            )
        from marft_lab.cluster.launcher import RayProcessLauncher  # imported here because only this method needs Ray

        return RayProcessLauncher(run, settings, kind, count)
