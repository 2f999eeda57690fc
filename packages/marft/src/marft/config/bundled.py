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

from marft.common.registry import registered
from marft.common.satellites import not_installed
from marft.config.settings import did_you_mean

SUFFIX = ".toml"


def bundled_recipes() -> Mapping[str, Path]:
    """Return the files of the bundled recipes by name: ``{"demo": …/recipes/demo.toml, …}``, sorted."""
    return _recipes(tuple(sys.path))


def bundled_models() -> Mapping[str, Path]:
    """Return the folders of the bundled models by name: ``{"tiny": …/models/tiny, …}``, sorted."""
    return _models(tuple(sys.path))


def bundled_names() -> list[str]:
    """Return the names of the bundled recipes."""
    return list(bundled_recipes())


def bundled(name: str) -> Path:
    """Return the file of a bundled recipe.

    Raises:
        ValueError: no installed package has a recipe of that name.
    """
    found = bundled_recipes().get(name)
    if found is None:
        unknown = f"no bundled recipe is called {name!r}{did_you_mean(name, bundled_names())}"
        raise ValueError(not_installed("recipes", name) or unknown)
    return found


def bundled_about(name: str) -> str:
    """Return the first line of a recipe's opening comment."""
    return bundled(name).read_text(encoding="utf-8").partition("\n")[0].removeprefix("#").strip()


@lru_cache(maxsize=16)
def _recipes(path: tuple[str, ...]) -> Mapping[str, Path]:
    found = {file.name.removesuffix(SUFFIX): file for file in _resources("recipes", f"*{SUFFIX}", path)}
    return dict(sorted(found.items()))


@lru_cache(maxsize=16)
def _models(path: tuple[str, ...]) -> Mapping[str, Path]:
    found = {file.parent.name.replace("_", "-"): file.parent for file in _resources("models", "*/config.json", path)}
    return dict(sorted(found.items()))


def _resources(folder: str, pattern: str, path: tuple[str, ...]) -> list[Path]:  # noqa: ARG001
    """Return the files of a pattern in one folder of each package. Those of the core come last: it takes precedence."""
    packages = [*(point.value for point in registered("resources").values()), "marft"]
    specs = [spec for spec in map(find_spec, packages) if spec is not None]
    roots = [Path(root) for spec in specs for root in spec.submodule_search_locations or ()]
    return [file for root in roots for file in sorted((root / folder).glob(pattern))]
