"""What every credit estimator is: a plugin that says what it needs (see :class:`marft.learning.interfaces.Credit`)."""

from __future__ import annotations

from typing import ClassVar, Literal

from marft.config.plugins import Plugin


class Estimator(Plugin):
    """Base of the built-in credits: no critic, nothing to compare with, no forks, unless a class says so."""

    needs_critic: ClassVar[bool] = False
    reads_traces: ClassVar[bool] = False
    grouped_by: ClassVar[Literal["task", ""]] = ""
    forks: ClassVar[Literal["tree", "counterfactual", "cross", ""]] = ""
