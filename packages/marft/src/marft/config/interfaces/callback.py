"""Callbacks that a recipe names."""

from __future__ import annotations

from marft.common.callbacks import Callback
from marft.config.plugins import Plugin


class CallbackPlugin(Plugin, Callback, kind="callbacks", label="a callback"):
    """Base class for callbacks in a recipe (``[[callbacks]]``). Its fields are its keys, its methods handle the events.

    A run uses a copy. Keep what changes in private attributes (``pydantic.PrivateAttr``), and return what a resumed run
    needs from ``state_dict``.
    """
