"""Research methods: flow networks, federations, leagues, world models, prompt optimization, cold starts, planning."""

from typing import TYPE_CHECKING

from marft.common.lazy_imports import lazy_exports

if TYPE_CHECKING:
    from marft_lab.python.worth import worth

__all__ = ["worth"]
__getattr__, __dir__ = lazy_exports(__name__, {"marft_lab.python.worth": ("worth",)})
