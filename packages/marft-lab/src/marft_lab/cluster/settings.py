"""``[cluster]``: where processes of a run are, when they need not be on its own machine. Reading it imports no Ray."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, ClassVar, Literal

from pydantic import Field, field_validator
from pydantic_core import PydanticCustomError

from marft.common.processes.starting import Starter
from marft.config.placement import Cluster, Kind
from marft.config.settings import NotNegative, Positive, Settings

if TYPE_CHECKING:
    from marft.config.run import RunSettings

Amount = Annotated[float, Field(gt=0, le=100_000)]


class PlaceSettings(Settings):
    """What a process has for itself, as Ray counts it."""

    cpus: Amount = 1.0  # also threads of what computes in it, unless it says otherwise
    gpus: Annotated[float, Field(ge=0, le=1024)] = 0.0  # it sees no others
    memory_gb: NotNegative = 0.0  # GiB; 0: not counted
    resources: dict[str, Amount] = {}  # others that its node must have, by the names that `ray start` gave them

    def bundle(self) -> dict[str, float]:
        """It as a bundle of a placement group."""
        counted = {"CPU": self.cpus, "GPU": self.gpus, "memory": self.memory_gb * 2**30, **self.resources}
        return {name: amount for name, amount in counted.items() if amount}


class ClusterSettings(Cluster):
    """Processes of the run are actors of a Ray cluster: ``rollout.processes`` workers, engines that are apart, and
    the ranks beside the run. It needs the extra ``ray``."""

    key: ClassVar[str] = "cluster"

    # of a cluster to join: host:port, or "auto" for the one that this machine is in; "": that of $RAY_ADDRESS, or else
    # one is started on this machine, for the run alone
    address: str = ""
    strategy: Literal["PACK", "SPREAD", "STRICT_PACK", "STRICT_SPREAD"] = "PACK"  # how Ray places workers on nodes
    worker: PlaceSettings = PlaceSettings()  # each of rollout.processes
    # each process of an engine that is apart; where it computes on GPUs one at least, else as many as are said
    engine: PlaceSettings = PlaceSettings()
    # each of training.ranks but the first, which is the run's process; on GPUs one at least, else none
    learner: PlaceSettings = PlaceSettings()
    patience_seconds: Positive = 60.0  # for the cluster to have room, and for a process to be there

    @field_validator("address")
    @classmethod
    def _is_no_client(cls, address: str) -> str:
        if address.startswith("ray://"):
            raise PydanticCustomError(
                "address",
                "a run is on a machine of the cluster, and Ray's client ({address}) is not: give host:port there, or "
                "submit it (ray job submit -- marft train …)",
                {"address": address},
            )
        return address

    def place_of(self, kind: Kind) -> PlaceSettings:
        """Return what each process of a kind has for itself."""
        places: dict[Kind, PlaceSettings] = {"worker": self.worker, "engine": self.engine, "learner": self.learner}
        return places[kind]

    def gpus_of(self, kind: Kind) -> float:
        """Return how many GPUs the recipe asks for, for each process of a kind."""
        return self.place_of(kind).gpus

    def open_starter(self, run: RunSettings, kind: Kind, count: int, gpus: float | None = None) -> Starter:
        """Return a starter of ``count`` processes of a kind, in places that are kept for them.

        Raises:
            ValueError: the cluster cannot be joined.
            RunError: it has no room for them.
        """
        settings = self
        if gpus is not None:
            settings = self.model_copy(update={kind: self.place_of(kind).model_copy(update={"gpus": gpus})})
        from marft_lab.cluster.starter import RayStarter  # Ray, which nothing else needs

        return RayStarter(run, settings, kind, count)
