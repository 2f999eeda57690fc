"""Results from ``marft worth`` for a run."""

from __future__ import annotations

import shlex
from typing import Any, Literal

from pydantic import BaseModel, FiniteFloat, ValidationError

from marft.common import atomic
from marft.config.load import first_problem
from marft_serve.viewer.library import Run

Interval = tuple[FiniteFloat, FiniteFloat]


class _Value(BaseModel):
    value: FiniteFloat
    interval: Interval | None = None
    difference: FiniteFloat | None = None
    difference_interval: Interval | None = None


class _Arm(BaseModel):
    part: str
    name: str
    values: dict[str, _Value]
    failed: int = 0
    attempts: int = 1
    tokens: FiniteFloat | None = None
    seconds: FiniteFloat | None = None


class _Share(BaseModel):
    agent: str
    actions: int
    contribution: _Value
    variance: _Value
    own: _Value | None = None


class _Action(BaseModel):
    id: str
    agent: str
    step: int
    index: int
    started: FiniteFloat
    ended: FiniteFloat
    sees: list[str]
    tokens: int
    text: str
    contribution: FiniteFloat | None
    resampled: list[FiniteFloat]


class _Episode(BaseModel):
    task: str
    prompt: str
    reward: FiniteFloat
    actions: list[_Action]


class _WorthFile(BaseModel):
    """Content read from ``worth.json``; files from earlier versions have no ``shown``."""

    headline: str = ""
    measure: Literal["accuracy", "reward"] = "accuracy"
    rows: list[_Arm] = []
    contributions: list[_Share] = []
    shown: list[_Episode] | None = None
    notes: list[str] = []


def get_worth(run: Run) -> dict[str, Any]:
    """Return the results; None without results or with a damaged file, which ``problem`` reports."""
    path = run.folder.worth / "worth.json"
    results, problem = None, ""
    try:
        results = _WorthFile.model_validate(atomic.read_json(path)).model_dump()
    except FileNotFoundError:
        pass
    except ValidationError as error:
        problem = first_problem(error)
    except (OSError, ValueError) as error:
        problem = str(error)
    return {
        "found": results,
        "problem": f"{path} is damaged ({problem}): ask again; what was played before is read" if problem else "",
        "command": shlex.join(["marft", "worth", str(run.folder.path)]),
        "page": str(path.with_suffix(".html")),
    }
