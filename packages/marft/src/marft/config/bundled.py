"""Recipes and models inside installed packages, each known by the name of its file or folder.

The core has some. A package adds those in its folders ``recipes`` and ``models`` by registering itself under the
entry-point group ``marft.resources``.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping
from functools import lru_cache
from importlib.util import find_spec
from pathlib import Path

from marft.common.errors import UserError
from marft.common.packages import missing_extra, registered_entry_points
from marft.config.settings import did_you_mean

SUFFIX = ".toml"


def bundled_recipes() -> Mapping[str, Path]:
    """Return the files of the bundled recipes by name: ``{"demo": …/recipes/demo.toml, …}``, sorted."""
    files = _find_resources("recipes", f"*{SUFFIX}", tuple(sys.path))
    return dict(sorted({file.name.removesuffix(SUFFIX): file for file in files}.items()))


def bundled_models() -> Mapping[str, Path]:
    """Return the folders of the bundled models by name: ``{"tiny": …/models/tiny, …}``, sorted."""
    files = _find_resources("models", "*/config.json", tuple(sys.path))
    return dict(sorted({file.parent.name.replace("_", "-"): file.parent for file in files}.items()))


def bundled_names() -> list[str]:
    """Return the names of the bundled recipes."""
    return list(bundled_recipes())


def bundled_recipe(name: str) -> Path:
    """Return the file of a bundled recipe.

    Raises:
        UserError: no installed package has a recipe of that name.
    """
    path = bundled_recipes().get(name)
    if path is None:
        unknown = f"no bundled recipe is called {name!r}{did_you_mean(name, bundled_names())}"
        raise UserError(missing_extra("recipes", name) or unknown)
    return path


def bundled_description(name: str) -> str:
    """Return the first line of a recipe's opening comment."""
    return bundled_recipe(name).read_text(encoding="utf-8").partition("\n")[0].removeprefix("#").strip()


@lru_cache(maxsize=16)
def _find_resources(folder: str, pattern: str, path: tuple[str, ...]) -> list[Path]:  # noqa: ARG001
    """Return the files of a pattern in one folder of each package. Those of the core come last: it takes precedence."""
    packages = [*(point.value for point in registered_entry_points("resources").values()), "marft"]
    specs = [spec for spec in map(find_spec, packages) if spec is not None]
    roots = [Path(root) for spec in specs for root in spec.submodule_search_locations or ()]
    return [file for root in roots for file in sorted((root / folder).glob(pattern))]


def resolve_path(path: str) -> str:
    """Return the folder of a bundled model (``"tiny"``, ``"tiny-tools"``, …), or any other path unchanged."""
    return str(bundled_models().get(path, path))
