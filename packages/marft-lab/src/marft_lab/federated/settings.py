"""A federation: sites that learn apart, each from its own tasks, and what they exchange; in a TOML file."""

from __future__ import annotations

import tomllib
from collections.abc import Iterator, Mapping
from itertools import combinations
from pathlib import Path
from typing import Annotated, Any, Self

from pydantic import Field, ValidationError, model_validator
from pydantic_core import PydanticCustomError

from marft.common.atomic import read_text
from marft.config.folders import AtHome, at_home
from marft.config.load import explain
from marft.config.names import Name, RunName, collisions
from marft.config.parts import CombinerPlugin
from marft.config.secrets import refuse_secrets
from marft.config.settings import Count, CountOrNone, Few, Filled, NotNegative, Plain, Settings

FREE = ("name", "output", "rounds", "at_least", "patience_seconds", "tries", "keep_last")  # what may change midway
LEAST_NOISE = 1e-3  # over clip
Hiding = Annotated[float, Field(ge=0, le=1e9)]


class SiteSettings(Settings):
    """A site: who learns there, from what, and where all that is its own lies."""

    recipe: Annotated[Filled, AtHome]  # a file, beside the federation's or anywhere; or the name of a bundled recipe
    changes: Plain = {}  # of the recipe, by dotted keys or as tables: { "environment.path" = "mine.csv" }
    # all that is the site's; "": sites/NAME in the federation's
    folder: Annotated[str, Field(pattern=r"^[^\x00]*$"), AtHome] = ""


class PrivacySettings(Settings):
    """What is done to an update before it leaves its site."""

    clip: Hiding = 0.0  # the largest L2 norm of a round's change to all adapters together; 0: any
    noise: Hiding = 0.0  # deviation of the Gaussian noise on each number that leaves, over clip; 0: none
    delta: Annotated[float, Field(gt=0, lt=1)] = 1e-5  # of the (ε, δ) that is reported where there is noise

    @model_validator(mode="after")
    def _noise_has_a_clip(self) -> Self:
        if self.noise and not self.clip:
            raise PydanticCustomError("noise", "noise hides nothing of a change of any size; set clip to its largest")
        if 0 < self.noise < LEAST_NOISE:
            raise PydanticCustomError("noise", "noise under {least} of clip hides nothing", {"least": LEAST_NOISE})
        return self


class FederationSettings(Settings):
    """Who learns together, for how long, and how what they have learned is combined."""

    name: RunName  # its folder is output/name; by default the file's name
    output: Annotated[Filled, AtHome] = "runs"  # the folder of its folder
    seed: Annotated[int, Field(ge=0, lt=2**63)] = 0  # each site's recipe gets one of its own from it
    rounds: Count = 10  # in each, sites learn apart and what they learned is combined
    steps: Count = 5  # training steps of each site in a round
    sites: Annotated[dict[Name, SiteSettings], Field(min_length=2)]  # by name
    combine: CombinerPlugin  # what each site goes on from
    privacy: PrivacySettings = PrivacySettings()  # of what leaves a site
    at_least: CountOrNone = 0  # sites that a round needs to have heard from; 0: all
    patience_seconds: NotNegative = 0.0  # after which a round goes on without those that did not answer; 0: it waits
    tries: Few = 3  # that a site has in a round, where its process ends
    keep_last: Count = 2  # newest rounds whose adapters stay with the coordinator

    @model_validator(mode="before")
    @classmethod
    def _fill_in(cls, table: object) -> object:
        return {"combine": {"name": "average"}, **table} if isinstance(table, dict) else table

    @model_validator(mode="after")
    def _check(self) -> Self:
        problems = []
        if self.at_least > len(self.sites):
            problems.append(f"at_least: {self.at_least} of {len(self.sites)} sites cannot be waited for; lower it")
        if self.privacy.noise and self.combine.counted:
            problems.append(
                "combine: it weighs sites by what they have played, which would leave them without noise; set "
                "weight = 'equally'"
            )
        problems += self.combine.problems(list(self.sites))
        if problems:
            raise PydanticCustomError("federation", "{problems}", {"problems": "\n".join(problems)})
        return self

    @property
    def needed(self) -> int:
        """Sites that a round needs."""
        return self.at_least or len(self.sites)

    @property
    def folder(self) -> Path:
        """Its own."""
        return Path(self.output) / self.name

    def site_folders(self, folder: Path) -> dict[str, Path]:
        """Of each site, absolute.

        Args:
            folder: of the federation.
        """
        return {name: (folder / (site.folder or f"sites/{name}")).absolute() for name, site in self.sites.items()}


def load_federation(path: Path) -> FederationSettings:
    """Read a federation's file. Recipes and folders beside it become absolute.

    Raises:
        ValueError: it is missing or no TOML, or a key or value is wrong; the message says which and why.
    """
    path = at_home(path)
    try:
        table = tomllib.loads(read_text(path))
    except OSError as error:
        raise ValueError(f"no federation at {path}: {error.strerror}; give a TOML file (docs: federated)") from None
    except (ValueError, RecursionError) as error:
        raise ValueError(f"{path} is not valid TOML: {error}") from error
    table.setdefault("name", path.stem)
    return parse_federation(table, str(path), path.parent.resolve())


def parse_federation(table: Mapping[str, Any], source: str, beside: Path) -> FederationSettings:
    """Validate a federation's tables.

    Args:
        beside: the folder that relative paths are looked up in.

    Raises:
        ValueError: with one line for each thing that is wrong.
    """
    refuse_secrets(table, source)
    try:
        settings = FederationSettings.model_validate(table, context={})
    except ValidationError as error:
        raise ValueError(f"{source}:\n{explain(error, table)}") from None
    sites = {name: _absolute(site, beside) for name, site in settings.sites.items()}
    settings = settings.model_copy(update={"sites": sites})
    problems = [*collisions("sites", sites), *_shared(settings)]
    if problems:
        raise ValueError("\n".join(f"{source}: {problem}" for problem in problems))
    return settings


def _shared(settings: FederationSettings) -> Iterator[str]:
    """Folders of sites that are not theirs alone."""
    own = {name: folder.resolve() for name, folder in settings.site_folders(settings.folder).items()}
    for (one, mine), (other, theirs) in combinations(own.items(), 2):
        if mine == theirs:
            yield f"sites: {one!r} and {other!r} have the same folder; what is a site's own is no other's"
        elif mine in theirs.parents or theirs in mine.parents:
            yield f"sites: of {one!r} and {other!r} one's folder lies within the other's; none may read another's"
    kept = settings.folder.resolve()
    for name, folder in own.items():
        if kept == folder or folder in kept.parents or (folder.parent != kept / "sites" and kept in folder.parents):
            yield f"sites: the folder of {name!r} is the federation's, or around it or in it; give it one of its own"


def _absolute(site: SiteSettings, beside: Path) -> SiteSettings:
    recipe = beside / site.recipe
    return site.model_copy(update={
        "recipe": str(recipe) if recipe.is_file() else site.recipe,
        "folder": str((beside / site.folder).absolute()) if site.folder else "",
    })  # fmt: skip


def refuse_other(before: Mapping[str, Any], now: Mapping[str, Any]) -> None:
    """A federation goes on with what shaped it.

    Raises:
        ValueError: a setting that shapes learning is another one than before; the message names each.
    """
    different = [key for key in {**before, **now} if key not in FREE and before.get(key) != now.get(key)]
    if different:
        raise ValueError(
            f"a federation goes on with the settings that it learned with so far, but {', '.join(different)} "
            f"{'is another' if len(different) == 1 else 'are others'}: take that back, or give it another name"
        )
