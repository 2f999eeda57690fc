"""What a site learns by: its own recipe, with what the federation decides for it."""

from __future__ import annotations

from collections.abc import Mapping
from concurrent.futures import BrokenExecutor, Future, ProcessPoolExecutor
from multiprocessing import get_context
from pathlib import Path
from typing import Any

from marft.common.seeds import derive_seed
from marft.config.load import load_recipe
from marft.config.run import RunSettings, refuse_nothing_to_train
from marft_lab.federated.settings import FederationSettings

RUN = "run"  # name of a site's run, whose folder is in the site's


def site_recipe(
    recipe: str, changes: Mapping[str, Any], *, name: str, seed: int, steps: int, folder: Path
) -> RunSettings:
    """A site's recipe, which trains for as long as all rounds together take.

    Args:
        name: of the site.
        seed: of the federation.
        steps: of all rounds.
        folder: that its run is in.

    Raises:
        ValueError: it cannot be read, or trains something else than adapters.
    """
    own = {
        "seed": derive_seed(seed, "site", name), **changes,
        "name": RUN, "output": str(folder), "training.steps": steps,
    }  # fmt: skip
    run = load_recipe(recipe, changes=own)
    refuse_nothing_to_train(run)
    for policy in run.trained_policies:
        if run.policies[policy].train != "lora":
            raise ValueError(f"policies.{policy}: adapters alone leave a site; set train = 'lora'")
    return run


def check_recipes(settings: FederationSettings, folder: Path) -> None:
    """Read each site's recipe in a process of its own, as sites do: what one imports is no other's.

    Args:
        folder: of the federation.

    Raises:
        ValueError: some cannot be used; the message says which, and why.
    """
    places = settings.site_folders(folder)
    with ProcessPoolExecutor(mp_context=get_context("spawn"), max_tasks_per_child=1) as processes:
        read = {
            name: processes.submit(
                _problem, site.recipe, site.changes, name=name, seed=settings.seed,
                steps=settings.rounds * settings.steps, folder=places[name],
            )
            for name, site in settings.sites.items()
        }  # fmt: skip
        problems = [f"sites.{name}: {problem}" for name, one in read.items() if (problem := _answer(one))]
    if problems:
        raise ValueError("\n".join(problems))


def _problem(recipe: str, changes: Mapping[str, Any], **told: Any) -> str:
    try:
        site_recipe(recipe, changes, **told)
    except ValueError as error:
        return str(error)
    return ""


def _answer(read: Future[str]) -> str:
    try:
        return read.result()
    except BrokenExecutor:
        return "its recipe was not read to its end: a process that reads one has ended"
