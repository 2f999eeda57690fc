"""Recipe sections: top-level tables added by installed packages.

A section is a class that the package registers under the entry-point group ``marft.sections``, by the name of its
table. A run reads it with ``run.section(DynaSettings)``. A recipe that does not set a section does not import it.

A :class:`Cluster` is the section that starts a run's processes on other machines.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Collection, Iterable, Mapping
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, Literal, Self

from pydantic import BeforeValidator, SerializeAsAny, ValidationInfo

from marft.common.errors import UserError
from marft.common.packages import registered_entry_points
from marft.common.processes.launcher import Launcher, LocalLauncher
from marft.config.plugins import load_registered
from marft.config.settings import Settings, did_you_mean

if TYPE_CHECKING:
    from marft.config.run import RunSettings

ProcessKind = Literal["worker", "engine", "learner"]  # kind of a process


class Section(Settings):
    """Base class for recipe sections. ``key`` is the name of the section's table."""

    key: ClassVar[str]

    @classmethod
    def from_run(cls, run: RunSettings) -> Self:
        """Return the run's section, or the defaults if the recipe does not set it."""
        return run.section(cls) or cls()

    def problems(self, run: RunSettings) -> Iterable[str]:  # noqa: ARG002
        """Return conflicts between the section and the rest: one sentence each, with a remedy."""
        return ()

    def extra_policies(self) -> Iterable[str]:
        """Return auxiliary policies that the section samples from, in addition to agents' policies."""
        return ()

    def policy_problems(self, run: RunSettings, place: str) -> Iterable[str]:
        """Yield the auxiliary policies that do not exist, or learn without an agent.

        Args:
            place: key that names the policies.
        """
        for name in sorted(self.extra_policies()):
            if name not in run.policies:
                yield f"{place}: no policy is called {name!r}{did_you_mean(name, run.policies)}"
            elif run.policies[name].train != "frozen" and not any(agent.policy == name for agent in run.agents):
                yield (
                    f"{place}: policy {name!r} learns, and no agent acts with it, so there is nothing that it could "
                    "learn from; set its train = 'frozen', or make it an agent"
                )

    def extra_tasks(self, step: int, tasks: int) -> int:  # noqa: ARG002
        """Return the number by which the section extends a training step with ``tasks`` tasks.

        Args:
            step: training step, counted from 0.
            tasks: tasks of the step without the section.
        """
        return 0


def section_names() -> list[str]:
    """Return the section names from all installed packages."""
    return sorted(registered_entry_points("sections"))


def section_class(name: str) -> type[Section]:
    """Return a section's class.

    Raises:
        UserError: the package that adds it cannot be imported, or registers another object.
    """
    target = load_registered("sections", name)
    if not (isinstance(target, type) and issubclass(target, Section) and target.key == name):
        raise UserError(f"{registered_entry_points('sections')[name].value} is not a section called {name!r}")
    return target


def pair_sections(table: Mapping[str, Any], other_keys: Collection[str]) -> dict[str, Any]:
    """Return a recipe with each section's table paired with its name, for :data:`SectionTable`.

    Args:
        other_keys: keys that are no sections.
    """
    names = [key for key in table if key not in other_keys]
    section_points = registered_entry_points("sections") if names else {}
    return {**table, **{name: (name, table[name]) for name in names if name in section_points}}


def _parse_section(value: object, info: ValidationInfo) -> object:
    if not isinstance(value, tuple):
        return value
    name, table = value
    return table if isinstance(table, Section) else section_class(name).model_validate(table, context=info.context)


SectionTable = Annotated[SerializeAsAny[Section], BeforeValidator(_parse_section)]


class Cluster(Section):
    """Base class for cluster settings. A cluster starts processes on other machines."""

    @abstractmethod
    def gpus_for(self, kind: ProcessKind) -> float:
        """Return the requested GPUs per process for a kind."""

    @abstractmethod
    def open_launcher(self, run: RunSettings, kind: ProcessKind, count: int, gpus: float | None = None) -> Launcher:
        """Return a launcher for ``count`` processes with one kind. Close it after use.

        Args:
            gpus: GPUs requested by each process; None: the recipe's number.

        Raises:
            UserError: the cluster cannot be joined.
            RunError: the cluster does not have enough resources.
        """


def find_cluster(run: RunSettings) -> Cluster | None:
    """Return the run's cluster; None if all processes run on this machine."""
    return next((section for section in run.sections if isinstance(section, Cluster)), None)


def open_launcher(run: RunSettings, kind: ProcessKind, count: int, gpus: float | None = None) -> Launcher:
    """Return a launcher for ``count`` processes, local unless the run has a cluster. Close it after use.

    Args:
        gpus: GPUs requested by each process on a cluster; None: the recipe's number.

    Raises:
        UserError: the cluster cannot be joined.
        RunError: the cluster does not have enough resources.
    """
    cluster = find_cluster(run)
    return cluster.open_launcher(run, kind, count, gpus) if cluster else LocalLauncher()
