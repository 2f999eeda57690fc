"""Imports that a dataset's own judge provides to every program, such as the names for ``List[int]``."""

from __future__ import annotations

STAR_MODULES = (
    "string",
    "re",
    "datetime",
    "collections",
    "heapq",
    "bisect",
    "copy",
    "math",
    "random",
    "statistics",
    "itertools",
    "functools",
    "operator",
    "io",
    "sys",
    "json",
)
RECURSION_LIMIT = 50_000  # recursion limit, in calls


def import_code(*more: str) -> str:
    """Return the imports from LiveCodeBench's judge (``lcb_runner/evaluation/testing_util.py``).

    They import all names from many modules, then restore the built-in names, then import the modules. The judge's
    recursion limit is set too.

    Args:
        more: names of further modules.
    """
    names = [f"from {module} import *" for module in (*STAR_MODULES, "builtins", "typing")]
    modules = [f"import {module}" for module in (*STAR_MODULES, *more)]
    return "\n".join([*names, *modules, f"sys.setrecursionlimit({RECURSION_LIMIT})\n"])


LIVECODEBENCH = import_code()
# The judge of APPS (eval/testing_util.py) also provides numpy, which is not available here.
APPS = import_code("fractions", "time")
