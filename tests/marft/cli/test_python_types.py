"""What is asked from Python is no text of a command line: wrong types are refused before anything begins."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import marft

untyped: Any = marft
WRONG: dict[str, tuple[Callable[[], object], str]] = {
    "no recipe": (lambda: untyped.load_recipe(None), "a recipe is a file, the name of a bundled one, tables"),
    "a list for a recipe": (lambda: untyped.train(["demo"]), "a recipe is a file"),
    "bytes for a recipe": (lambda: untyped.evaluate(b"demo"), "of type bytes"),
    "a number for a run": (lambda: untyped.load_run(3), "a run is named by its folder, .* this is 3"),
    "tables for a run": (lambda: untyped.load_run({}), "a run is named by its folder"),
    "no changes": (lambda: untyped.load_recipe("demo", None), "changes are a table"),
    "numbers for words": (lambda: untyped.load_recipe("demo", ["--training.steps", 5]), "this list holds 5"),
    "a function, not a list": (lambda: untyped.load_recipe("demo", given=print), r"given is a list .*given=\[…\]"),
    "a name for what is given": (lambda: untyped.load_recipe("demo", given="brevity"), "given is a list"),
    "no observer": (lambda: untyped.train("demo", callbacks=[3]), "derives from marft.Callback, and one is 3"),
    "a class that observes": (lambda: untyped.train("demo", callbacks=[marft.Callback]), "one is the class Callback"),
    "a callback alone": (lambda: untyped.train("demo", callbacks=marft.Callback()), r"callbacks is a list, .*of type Callback"),
    "callbacks that can be read once": (lambda: untyped.train("demo", callbacks=iter([])), r"callbacks is a list, callbacks=\[…\]"),
    "no checkpoint to start from": (lambda: untyped.train("demo", start_from=""), "start_from: a checkpoint"),
    "a number for modes": (lambda: untyped.evaluate("demo", modes=3), r'modes is a list of names, \["greedy"\]'),
    "an unknown mode": (lambda: untyped.evaluate("demo", modes=["guessing"]), "'guessing' is none of greedy, sampled"),
    "fewer tasks than none": (lambda: untyped.evaluate("demo", tasks=-1), "a whole number from 0 on, and this is -1"),
    "half a task": (lambda: untyped.evaluate("demo", tasks=2.5), "a whole number"),
}  # fmt: skip


@pytest.mark.parametrize("name", WRONG)
def test_a_wrong_type_is_refused_in_words_before_anything_begins(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    asked, said = WRONG[name]
    with pytest.raises(ValueError, match=said):
        asked()
    assert not list(tmp_path.iterdir())
