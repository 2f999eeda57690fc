"""Creation of third-party environments, with clear errors."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from importlib.util import find_spec
from types import ModuleType
from typing import Any

from marft.common.faults import described
from marft.common.satellites import install_command
from marft.common.user_modules import import_named
from marft.config.keys import filled, masked, variables_of
from marft.config.plugins import import_path, module_in


def gymnasium_env(game: str, kwargs: Mapping[str, Any]) -> Any:
    """Create an environment from its Gymnasium id, or from a factory's import path.

    Raises:
        ValueError: the environment does not exist or cannot be created.
    """
    needs("gymnasium")
    if _is_path(game):
        return _made(game, import_path(game), kwargs)
    import gymnasium

    module = game.rpartition(":")[0]
    if module:  # import it here, because Gymnasium would look among installed modules only
        _imported(module, game)
    return _made(game, lambda **given: gymnasium.make(game, **given), kwargs)


def pettingzoo_env(game: str, kwargs: Mapping[str, Any]) -> Any:
    """Create an environment from a module with ``env`` or ``parallel_env``, or from a factory's import path.

    Raises:
        ValueError: the environment does not exist or cannot be created.
    """
    needs("pettingzoo")
    if _is_path(game):
        return _made(game, import_path(game), kwargs)
    module = _imported(game, game)
    factory = getattr(module, "env", None) or getattr(module, "parallel_env", None)
    if factory is None:
        raise ValueError(f"environment.game: {game} has neither env nor parallel_env; give 'my_package.module:factory'")
    return _made(game, factory, kwargs)


def _imported(module: str, game: str) -> ModuleType:
    """Import a game's module.

    Raises:
        ValueError: the import failed.
    """
    try:
        return import_named(module)
    except Exception as error:
        package, _, rest = module.partition(".")
        family = rest.partition(".")[0]
        remedy = (
            f"; games want packages of their own: pip install 'pettingzoo[{family}]'"
            if package == "pettingzoo" and family and isinstance(error, ModuleNotFoundError) else ""
        )  # fmt: skip
        raise ValueError(f"environment.game: cannot import {game!r}: {described(error)}{remedy}") from error


def ansi_of(env: Any) -> bool:
    """Return True if an environment supports ANSI rendering."""
    return "ansi" in (getattr(env, "metadata", None) or {}).get("render_modes", ())


def needs(package: str) -> None:
    """Raise an error if a package is missing.

    Raises:
        ValueError: the package is missing.
    """
    if find_spec(package) is None:
        raise ValueError(f"environment: {package} is not installed; {install_command(package)}")


def _is_path(game: str) -> bool:
    """Return True for an import path.

    Gymnasium ids may contain a module too, as in ``module:Game-v0``; they are not import paths.
    """
    return bool(module_in(game)) and game.partition(":")[2].isidentifier()


def _made(game: str, factory: Callable[..., Any], kwargs: Mapping[str, Any]) -> Any:
    try:
        return factory(**filled(dict(kwargs)))
    except Exception as error:
        said = masked(list(variables_of(kwargs)), described(error))
        raise ValueError(f"environment.game: {game} cannot be made with {dict(kwargs)}: {said}") from error
