"""What a site learns by: its own recipe, with what the federation decides for it."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from marft.config.federation import FederationSettings
from marft.config.load import load_recipe
from marft.config.run import RunSettings, refuse_nothing_to_train
from marft.federated.place import RUN
from marft.seeds import derive_seed


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


def site_recipes(settings: FederationSettings, folder: Path) -> dict[str, RunSettings]:
    """Each site's, by its name.

    Args:
        folder: of the federation.

    Raises:
        ValueError: some cannot be used; the message says which, and why.
    """
    found, problems = dict[str, RunSettings](), list[str]()
    for name, site in settings.sites.items():
        place = Path(site.folder or folder / "sites" / name)
        steps = settings.rounds * settings.steps
        try:
            found[name] = site_recipe(
                site.recipe, site.changes, name=name, seed=settings.seed, steps=steps, folder=place
            )
        except ValueError as error:
            problems.append(f"sites.{name}: {error}")
    if problems:
        raise ValueError("\n".join(problems))
    return found
