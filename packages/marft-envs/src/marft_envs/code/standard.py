"""Names that a collection's own judge has there for every program, so that ``List[int]`` in a starter is known."""

from __future__ import annotations

STARRED = (
    "string", "re", "datetime", "collections", "heapq", "bisect", "copy", "math", "random", "statistics", "itertools",
    "functools", "operator", "io", "sys", "json",
)  # fmt: skip
DEEPEST = 50_000  # calls in each other


def standard(*more: str) -> str:
    """Imports as LiveCodeBench's judge has them (``lcb_runner/evaluation/testing_util.py``): all names of many modules,
    built-in ones untouched, then the modules themselves; and its limit of recursion.

    Args:
        more: further modules, by name.
    """
    names = [f"from {module} import *" for module in (*STARRED, "builtins", "typing")]
    modules = [f"import {module}" for module in (*STARRED, *more)]
    return "\n".join([*names, *modules, f"sys.setrecursionlimit({DEEPEST})\n"])


LIVECODEBENCH = standard()
APPS = standard("fractions", "time")  # of what its judge has (eval/testing_util.py), numpy is not there
