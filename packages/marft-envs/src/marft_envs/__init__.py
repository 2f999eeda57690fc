"""Environments bundled with MARFT, and the environment check."""

from typing import TYPE_CHECKING

from marft.common.lazy_imports import lazy_exports

if TYPE_CHECKING:
    from marft_envs.api import check_environment

__all__ = ["check_environment"]
__getattr__, __dir__ = lazy_exports(__name__, {"marft_envs.api": ("check_environment",)})
