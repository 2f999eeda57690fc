"""Environments bundled with MARFT, and the environment check."""

from typing import TYPE_CHECKING

from marft.common.lazy import lazy_names

if TYPE_CHECKING:
    from marft_envs.api import check_environment

__all__ = ["check_environment"]
__getattr__, __dir__ = lazy_names(__name__, {"marft_envs.api": ("check_environment",)})
