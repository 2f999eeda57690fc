"""Creation of third-party environments, with clear errors."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from importlib.util import find_spec
from types import ModuleType
from typing import Any

from marft.common.error_origin import describe_error
from marft.common.packages import install_command
from marft.common.user_modules import import_user_module
from marft.config.api_keys import fill_variables, mask_values, variable_values
from marft.config.plugins import import_object, module_name


def make_gymnasium_env(game: str, kwargs: Mapping[str, Any]) -> Any:
    """Create an environment from its Gymnasium id, or from a factory's import path.

    Raises:
        ValueError: the environment does not exist or cannot be created.
    """
    check_installed("gymnasium")
    if _is_path(game):
        return _call_factory(game, import_object(game), kwargs)
    import gymnasium

    module = game.rpartition(":")[0]
    if module:  # import it here, because Gymnasium would look among installed modules only
        _import_game(module, game)
    return _call_factory(game, lambda **arguments: gymnasium.make(game, **arguments), kwargs)


def make_pettingzoo_env(game: str, kwargs: Mapping[str, Any]) -> Any:
    """Create an environment from a module with ``env`` or ``parallel_env``, or from a factory's import path.

    Raises:
        ValueError: the environment does not exist or cannot be created.
    """
    check_installed("pettingzoo")
    if _is_path(game):
        return _call_factory(game, import_object(game), kwargs)
    module = _import_game(game, game)
    factory = getattr(module, "env", None) or getattr(module, "parallel_env", None)
    if factory is None:
        raise ValueError(f"environment.game: {game} has neither env nor parallel_env; give 'my_package.module:factory'")
    return _call_factory(game, factory, kwargs)


def _import_game(module: str, game: str) -> ModuleType:
    """Import a game's module.

    Raises:
        ValueError: the import failed.
    """
    try:
        return import_user_module(module)
    except Exception as error:
        package, _, submodule = module.partition(".")
        family = submodule.partition(".")[0]
        hint = (
            f"; games want packages of their own: pip install 'pettingzoo[{family}]'"
            if package == "pettingzoo" and family and isinstance(error, ModuleNotFoundError)
            else ""
        )
        raise ValueError(f"environment.game: cannot import {game!r}: {describe_error(error)}{hint}") from error


def supports_ansi(env: Any) -> bool:
    """Return True if an environment supports ANSI rendering."""
    return "ansi" in (getattr(env, "metadata", None) or {}).get("render_modes", ())


def check_installed(package: str) -> None:
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
    return bool(module_name(game)) and game.partition(":")[2].isidentifier()


def _call_factory(game: str, factory: Callable[..., Any], kwargs: Mapping[str, Any]) -> Any:
    try:
        return factory(**fill_variables(dict(kwargs)))
    except Exception as error:
        message = mask_values(list(variable_values(kwargs)), describe_error(error))
        raise ValueError(f"environment.game: {game} cannot be made with {dict(kwargs)}: {message}") from error
