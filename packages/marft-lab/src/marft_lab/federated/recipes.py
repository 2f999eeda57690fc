"""A site's recipe: the site's own recipe with the federation's overrides."""

from __future__ import annotations

from collections.abc import Mapping
from concurrent.futures import BrokenExecutor, Future, ProcessPoolExecutor
from multiprocessing import get_context
from pathlib import Path
from typing import Any

from marft.common.seeds import derive_seed
from marft.config.load import load_recipe
from marft.config.run import RunSettings, check_trainable
from marft_lab.federated.settings import FederationSettings

RUN_NAME = "run"  # name of a site's run, in the site's folder


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
        ValueError: the recipe is invalid, or trains weights other than adapters.
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
            raise ValueError(f"policies.{policy}: adapters alone leave a site; set train = 'lora'")
    return run


def check_recipes(settings: FederationSettings, folder: Path) -> None:
    """Validate each site's recipe in a separate process.

    Separate processes keep the imports of recipes apart.

    Args:
        settings: settings of the federation.
        folder: folder of the federation.

    Raises:
        ValueError: invalid recipes; the message lists the sites and the reasons.
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
        raise ValueError("\n".join(problems))


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
