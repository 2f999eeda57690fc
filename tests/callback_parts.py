"""Callbacks as a recipe names them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar

from pydantic import PrivateAttr

from marft.config.interfaces.callback import CallbackPlugin


class Counts(CallbackPlugin):
    """Counts steps by a stride, and goes on counting when a run resumes."""

    stride: int = 1
    heard: ClassVar[list[tuple[str, Any]]] = []
    _count: int = PrivateAttr(default=0)

    def on_train_start(self, completed_steps: int, steps: int) -> None:
        self.heard.append(("start", self._count))

    def on_step_end(self, step: int, metrics: dict[str, float]) -> None:
        self._count += self.stride
        self.heard.append(("step", self._count))

    def state_dict(self) -> Mapping[str, object]:
        return {"count": self._count}

    def load_state_dict(self, state: Mapping[str, object]) -> None:
        count = state["count"]
        assert isinstance(count, int)
        self._count = count
