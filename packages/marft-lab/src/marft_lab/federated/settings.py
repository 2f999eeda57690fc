"""Settings of a federation: sites with their recipes, and the exchange of adapters; read from a TOML file."""

from __future__ import annotations

import tomllib
from collections.abc import Iterator, Mapping
from concurrent.futures import BrokenExecutor, Future, ProcessPoolExecutor
from itertools import combinations
from multiprocessing import get_context
from pathlib import Path
from typing import Annotated, Any, Self

from pydantic import Field, ValidationError, model_validator
from pydantic_core import PydanticCustomError

from marft.common.atomic import read_text
from marft.common.errors import UserError
from marft.common.seeds import derive_seed
from marft.config.load import format_errors, load_recipe
from marft.config.names import Name, RunName, name_conflicts
from marft.config.paths import ExpandUser, expand_user
from marft.config.run import RunSettings, check_trainable
from marft.config.secrets import check_no_secrets
from marft.config.settings import Count, NonEmptyString, NonNegative, NonNegativeCount, PlainTable, Settings
from marft_lab.federated.combiner import Combiner

# keys that may change on resume
MUTABLE_KEYS = ("name", "output", "rounds", "min_sites", "round_timeout_seconds", "max_retries", "keep_last")
MIN_NOISE = 1e-3  # minimum noise, relative to clip
NoiseLevel = Annotated[float, Field(ge=0, le=1e9)]
RUN_NAME = "run"  # name of a site's run, in the site's folder


class SiteSettings(Settings):
    """Site: recipe, overrides and folder."""

    recipe: Annotated[NonEmptyString, ExpandUser] = Field(
        description="recipe file, relative to the federation's file or absolute; or the name of a bundled recipe"
    )
    overrides: PlainTable = Field(
        default={},
        description='overrides of the recipe, by dotted keys or as tables: { "environment.path" = "mine.csv" }',
    )
    folder: Annotated[str, Field(pattern=r"^[^\x00]*$"), ExpandUser] = Field(
        default="", description="folder of the site's own data; \"\": sites/NAME in the federation's folder"
    )


class PrivacySettings(Settings):
    """Privacy of updates: clipping and noise before an update leaves its site."""

    clip: NoiseLevel = Field(
        default=0.0, description="maximum L2 norm of a round's change, over the adapters together; 0: no clipping"
    )
    noise_multiplier: NoiseLevel = Field(
        default=0.0,
        description="standard deviation of the Gaussian noise per sent number, relative to clip; 0: no noise",
    )
    delta: Annotated[float, Field(gt=0, lt=1)] = Field(
        default=1e-5, description="δ of the reported (ε, δ), if there is noise"
    )

    @model_validator(mode="after")
    def _check_noise(self) -> Self:
        if self.noise_multiplier and not self.clip:
            raise PydanticCustomError("noise", "noise hides nothing of a change of any size; set clip to its largest")
        if 0 < self.noise_multiplier < MIN_NOISE:
            raise PydanticCustomError("noise", "noise_multiplier under {least} hides nothing", {"least": MIN_NOISE})
        return self


class FederationSettings(Settings):
    """Federation: sites, rounds, aggregation and privacy."""

    name: RunName = Field(description="name of the federation, in folder output/name; default: name of the file")
    output: Annotated[NonEmptyString, ExpandUser] = Field(
        default="runs", description="parent folder of the federation's folder"
    )
    seed: Annotated[int, Field(ge=0, lt=2**63)] = Field(
        default=0, description="seed of the federation; each site's recipe gets its own derived seed"
    )
    rounds: Count = Field(
        default=10,
        description="number of rounds; in a round, sites train separately, and MARFT aggregates the adapters",
    )
    steps: Count = Field(default=5, description="training steps of each site per round")
    sites: Annotated[dict[Name, SiteSettings], Field(min_length=2)] = Field(description="sites, by name")
    combine: Combiner = Field(description="aggregation rule for the adapters of each site")
    privacy: PrivacySettings = Field(default=PrivacySettings(), description="clipping and noise of updates")
    min_sites: NonNegativeCount = Field(
        default=0, description="minimum number of replying sites per round; 0: every site"
    )
    round_timeout_seconds: NonNegative = Field(
        default=0.0, description="timeout of a round, in seconds; then missing sites are skipped; 0: no timeout"
    )
    max_retries: Annotated[int, Field(ge=0, le=10_000)] = Field(
        default=2, description="retries per site and round, after an exit of its process or an invalid update"
    )
    keep_last: Count = Field(default=2, description="number of newest rounds with adapters in the coordinator's folder")

    @model_validator(mode="before")
    @classmethod
    def _set_default_combiner(cls, table: object) -> object:
        return {"combine": {"name": "average"}, **table} if isinstance(table, dict) else table

    @model_validator(mode="after")
    def _check(self) -> Self:
        problems = []
        if self.min_sites > len(self.sites):
            problems.append(f"min_sites: {self.min_sites} of {len(self.sites)} sites cannot be waited for; lower it")
        if self.privacy.noise_multiplier and self.combine.contribution_unit:
            problems.append(
                "combine: it weighs sites by what they have played, which would leave them without noise; set "
                "weight = 'equal'"
            )
        problems += self.combine.problems(list(self.sites))
        if problems:
            raise PydanticCustomError("federation", "{problems}", {"problems": "\n".join(problems)})
        return self

    @property
    def min_replies(self) -> int:
        """Minimum replies per round."""
        return self.min_sites or len(self.sites)

    @property
    def folder(self) -> Path:
        """Folder of the federation."""
        return Path(self.output) / self.name

    def site_folders(self, folder: Path) -> dict[str, Path]:
        """Return each site's absolute folder.

        Args:
            folder: folder of the federation.
        """
        return {name: (folder / (site.folder or f"sites/{name}")).absolute() for name, site in self.sites.items()}


def load_federation(path: Path) -> FederationSettings:
    """Read the file of a federation; recipes and folders relative to the file become absolute.

    Raises:
        UserError: missing file, invalid TOML, or invalid key or value; the message gives the reason.
    """
    path = expand_user(path)
    try:
        table = tomllib.loads(read_text(path))
    except OSError as error:
        raise UserError(f"no federation at {path}: {error.strerror}; give a TOML file (docs: federated)") from None
    except (ValueError, RecursionError) as error:
        raise UserError(f"{path} is not valid TOML: {error}") from error
    table.setdefault("name", path.stem)
    return parse_federation(table, str(path), path.parent.resolve())


def parse_federation(table: Mapping[str, object], source: str, base_folder: Path) -> FederationSettings:
    """Validate a federation's tables.

    Args:
        table: parsed TOML.
        source: name of the file, for messages.
        base_folder: base folder of relative paths.

    Raises:
        UserError: invalid settings; the message has one line per problem.
    """
    check_no_secrets(table, source)
    try:
        settings = FederationSettings.model_validate(table, context={})
    except ValidationError as error:
        raise UserError(f"{source}:\n{format_errors(error, table)}") from None
    sites = {name: _with_absolute_paths(site, base_folder) for name, site in settings.sites.items()}
    settings = settings.model_copy(update={"sites": sites})
    problems = [*name_conflicts("sites", sites), *_folder_conflicts(settings)]
    if problems:
        raise UserError("\n".join(f"{source}: {problem}" for problem in problems))
    return settings


def _folder_conflicts(settings: FederationSettings) -> Iterator[str]:
    """Yield a problem for each site folder shared with another site or with the federation."""
    folders = {name: folder.resolve() for name, folder in settings.site_folders(settings.folder).items()}
    for (first, first_folder), (second, second_folder) in combinations(folders.items(), 2):
        if first_folder == second_folder:
            yield f"sites: {first!r} and {second!r} have the same folder; what is a site's own is no other's"
        elif first_folder in second_folder.parents or second_folder in first_folder.parents:
            yield f"sites: of {first!r} and {second!r} one's folder lies within the other's; none may read another's"
    federation_folder = settings.folder.resolve()
    for name, folder in folders.items():
        if (
            federation_folder == folder
            or folder in federation_folder.parents
            or (folder.parent != federation_folder / "sites" and federation_folder in folder.parents)
        ):
            yield f"sites: the folder of {name!r} is the federation's, or around it or in it; give it one of its own"


def _with_absolute_paths(site: SiteSettings, base_folder: Path) -> SiteSettings:
    recipe = base_folder / site.recipe
    return site.model_copy(
        update={
            "recipe": str(recipe) if recipe.is_file() else site.recipe,
            "folder": str((base_folder / site.folder).absolute()) if site.folder else "",
        }
    )


def check_unchanged(before: Mapping[str, object], current: Mapping[str, object]) -> None:
    """Check a resumed federation for changed training settings.

    Raises:
        UserError: changed settings; the message names each changed key.
    """
    different = [
        key for key in {**before, **current} if key not in MUTABLE_KEYS and before.get(key) != current.get(key)
    ]
    if different:
        raise UserError(
            f"a federation goes on with the settings that it learned with so far, but {', '.join(different)} "
            f"{'is another' if len(different) == 1 else 'are others'}: take that back, or give it another name"
        )


def load_site_recipe(
    recipe: str, changes: Mapping[str, Any], *, name: str, seed: int, steps: int, folder: Path
) -> RunSettings:
    """Load a site's recipe, with training steps for the whole federation.

    Args:
        recipe: recipe file or name of a bundled recipe.
        changes: overrides of the recipe.
        name: name of the site.
        seed: seed of the federation.
        steps: training steps of all rounds together.
        folder: parent folder of the run.

    Raises:
        UserError: the recipe is invalid, or trains weights other than adapters.
    """
    overrides = {
        "seed": derive_seed(seed, "site", name),
        **changes,
        "name": RUN_NAME,
        "output": str(folder),
        "training.steps": steps,
    }
    run = load_recipe(recipe, changes=overrides)
    check_trainable(run)
    for policy in run.trained_policies:
        if run.policies[policy].train != "lora":
            raise UserError(f"policies.{policy}: adapters alone leave a site; set train = 'lora'")
    return run


def check_recipes(settings: FederationSettings, folder: Path) -> None:
    """Validate each site's recipe in a separate process.

    Separate processes keep the imports of recipes apart.

    Args:
        settings: settings of the federation.
        folder: folder of the federation.

    Raises:
        UserError: invalid recipes; the message lists the sites and the reasons.
    """
    folders = settings.site_folders(folder)
    with ProcessPoolExecutor(mp_context=get_context("spawn"), max_tasks_per_child=1) as processes:
        futures = {
            name: processes.submit(
                _find_problem,
                site.recipe,
                site.overrides,
                name=name,
                seed=settings.seed,
                steps=settings.rounds * settings.steps,
                folder=folders[name],
            )
            for name, site in settings.sites.items()
        }
        problems = [
            f"sites.{name}: {problem}" for name, future in futures.items() if (problem := _read_problem(future))
        ]
    if problems:
        raise UserError("\n".join(problems))


def _find_problem(recipe: str, changes: Mapping[str, Any], **options: Any) -> str:
    try:
        load_site_recipe(recipe, changes, **options)
    except ValueError as error:
        return str(error)
    return ""


def _read_problem(future: Future[str]) -> str:
    try:
        return future.result()
    except BrokenExecutor:
        return "its recipe was not read to its end: a process that reads one has ended"
