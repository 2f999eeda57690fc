"""Recipes that come with the package go by their names, in any folder."""

from __future__ import annotations

import tomllib
from pathlib import Path

import pytest

from marft.config import load_recipe
from marft.config.bundled import bundled_names, bundled_recipe


@pytest.fixture(autouse=True)
def _in_an_empty_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


def refusal(path: str) -> str:
    with pytest.raises(ValueError, match="no recipe at") as caught:
        load_recipe(path)
    return str(caught.value)


def test_a_name_means_the_bundled_recipe() -> None:
    assert load_recipe("demo_single").name == "demo_single"


def test_a_file_of_that_name_wins() -> None:
    Path("demo").write_text('name = "mine"\n' + bundled_recipe("demo_single").read_text().split("\n", 3)[3])
    assert load_recipe("demo").name == "mine"


def test_a_file_with_an_ending_is_another_name() -> None:
    Path("demo.toml").write_text(bundled_recipe("demo_single").read_text())
    assert load_recipe("demo").name == "demo"


def test_a_folder_of_that_name_is_no_recipe() -> None:
    Path("demo").mkdir()
    assert refusal("demo").startswith("no recipe at demo")


def test_what_may_have_been_meant_is_a_bundled_recipe_or_a_file() -> None:
    assert refusal("dmeo") == "no recipe at dmeo; did you mean 'demo'?"
    assert refusal("math_dual.toml") == "no recipe at math_dual.toml; did you mean 'math_dual'?"
    Path("my_team.toml").touch()
    assert refusal("my_taem.toml") == "no recipe at my_taem.toml; did you mean 'my_team.toml'?"
    assert refusal("somewhere/else").endswith(f"; bundled are {', '.join(bundled_names())}")


@pytest.mark.parametrize("name", bundled_names())
def test_a_recipe_has_the_name_of_its_file_and_begins_with_what_it_is(name: str) -> None:
    text = bundled_recipe(name).read_text(encoding="utf-8")
    assert tomllib.loads(text)["name"] == name
    first = text.splitlines()[0]
    assert first.startswith("# ")
    assert first.endswith(".")
