"""Lazy package exports: each name is imported on first use."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from importlib import import_module
from typing import Any


def lazy_exports(
    package: str, exports: Mapping[str, Sequence[str]]
) -> tuple[Callable[[str], Any], Callable[[], list[str]]]:
    """Return ``__getattr__`` and ``__dir__`` for a package with lazy exports.

    The returned ``__getattr__`` raises AttributeError for an unknown name.

    Args:
        package: full name of the package.
        exports: exported names by module.
    """
    module_of = {name: module for module, names in exports.items() for name in names}

    def get(name: str) -> Any:
        if name not in module_of:
            raise AttributeError(f"module {package!r} has no attribute {name!r}")
        return getattr(import_module(module_of[name]), name)

    def names() -> list[str]:
        return sorted({*vars(import_module(package)), *module_of})

    return get, names
