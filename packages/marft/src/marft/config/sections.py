"""Recipe sections: top-level tables of a recipe that an installed package adds.

A section is a class that the package registers under the entry-point group ``marft.sections``, by the name of its
table. A run reads it with ``run.section(DynaSettings)``. A recipe that does not set a section does not import it.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, Self

from pydantic import BeforeValidator, SerializeAsAny, ValidationInfo

from marft.common.registry import registered
from marft.config.plugins import load_registered
from marft.config.settings import Settings

if TYPE_CHECKING:
    from marft.config.run import RunSettings


class Section(Settings):
    """Base of recipe sections. ``key`` is the name of the section's table."""

    key: ClassVar[str]

    @classmethod
    def of(cls, run: RunSettings) -> Self:
        """Return the section of a run, or one with defaults where the recipe does not set it."""
        return run.section(cls) or cls()

    def problems(self, run: RunSettings) -> Iterable[str]:  # noqa: ARG002
        """Return why the section does not fit the rest of a recipe: one sentence each, with the remedy."""
        return ()

    def consulted_policies(self) -> Iterable[str]:
        """Return the policies that the section samples from, beside those that agents act with."""
        return ()

    def extra_tasks(self, step: int, tasks: int) -> int:  # noqa: ARG002
        """Return how many tasks the section adds to a training step (counted from 0) of ``tasks`` tasks."""
        return 0


def section_names() -> list[str]:
    """Return the names of the sections that installed packages add."""
    return sorted(registered("sections"))


def section_class(name: str) -> type[Section]:
    """Return the class of a section.

    Raises:
        ValueError: the package that adds it cannot be imported, or registers something else.
    """
    found = load_registered("sections", name)
    if not (isinstance(found, type) and issubclass(found, Section) and found.key == name):
        raise ValueError(f"{registered('sections')[name].value} is not a section called {name!r}")
    return found


def sections_in(names: Iterable[str]) -> Iterator[str]:
    """Yield those of some keys of a recipe that are sections."""
    names = list(names)
    known = registered("sections") if names else {}
    yield from (name for name in names if name in known)


def keyed(table: Mapping[str, Any], names: Iterable[str]) -> dict[str, Any]:
    """Return a recipe whose sections carry their names, for :data:`AnySection`."""
    return {**table, **{name: (name, table[name]) for name in names}}


def _read(value: object, info: ValidationInfo) -> object:
    if not isinstance(value, tuple):
        return value
    name, table = value
    return table if isinstance(table, Section) else section_class(name).model_validate(table, context=info.context)


AnySection = Annotated[SerializeAsAny[Section], BeforeValidator(_read)]
