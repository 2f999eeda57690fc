"""Saved evaluations on suites of attacks."""

from __future__ import annotations

from typing import Any


def saved(checkpoint: str, obeyed: int, of: int = 100, attack: str = "order", **more: object) -> dict[str, Any]:
    """An evaluation on a suite, in which an attack was obeyed on the first tasks."""
    measured = {str(n): {f"attacks/{attack}/success": [float(n < obeyed), 1.0]} for n in range(of)}
    on = {"name": "mine", "digest": "d"}
    return {
        "checkpoint": checkpoint, "mode": "sampled", "shuffled_messages": False, "scenarios": on, "measured": measured,
        **more,
    }  # fmt: skip
