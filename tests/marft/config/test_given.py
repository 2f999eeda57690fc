"""What is given in Python, as a file could hold it: by its import path where any process has it, else by its name."""

from __future__ import annotations

import sys
from functools import partial
from types import ModuleType
from typing import Any

import pytest

import marft
from marft.agents.channels import Last
from marft.config import parse_recipe, to_toml
from marft.config.interfaces.schedule import UpdateSchedule
from marft.config.plugins import Plugin
from marft.config.python_objects import ObjectPlaceholder, replace_objects
from marft.examples.plugins import SPO, Median
from tests.helpers import recipe
from tests.marft.cli.test_python import BREVITY, as_in_a_notebook
from tests.plugins import Flaky


def words_for(value: Any) -> str:
    """The words that a reward's function is written down by."""
    table, _ = replace_objects({"rewards": [value]})
    return str(table["rewards"][0]["call"])


class Optional(Plugin):
    """A part with a key that need not be set."""

    most: int | None = None


class Rounds(UpdateSchedule):
    """A schedule."""


class Notes:
    """Tools that keep the state of an episode."""


def per_word(episode: Any, price: float) -> float:
    return price * len(episode.actions)


class TestWords:
    def test_a_function_of_the_script_that_runs_is_nothing_that_others_could_import(
        self, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        brevity = as_in_a_notebook(BREVITY, "brevity")
        script = ModuleType("__main__")
        script.__file__, script.brevity = "script.py", brevity  # type: ignore[attr-defined]
        monkeypatch.setitem(sys.modules, "__main__", script)
        assert words_for(brevity) == "given in Python: brevity"

    def test_nor_is_one_of_a_module_that_lies_in_no_file(self, monkeypatch: pytest.MonkeyPatch) -> None:
        made = ModuleType("made")
        exec(BREVITY, vars(made))
        monkeypatch.setitem(sys.modules, "made", made)
        assert words_for(made.brevity) == "given in Python: brevity"

    def test_nor_is_what_only_says_that_it_stands_in_a_module(self) -> None:
        shadow = type("Flaky", (Flaky,), {"__module__": Flaky.__module__})
        table, given = replace_objects({"environment": shadow})
        assert table == {"environment": {"name": "given in Python: Flaky"}}
        assert given == {"given in Python: Flaky": shadow}

    def test_what_stands_in_a_class_or_a_function_is_called_by_its_name(self) -> None:
        assert words_for(TestWords.test_nor_is_what_only_says_that_it_stands_in_a_module).startswith(
            "given in Python: "
        )
        assert words_for(lambda episode: 1.0) == "given in Python: <lambda>"

    def test_a_function_with_some_of_its_arguments_is_called_like_it(self) -> None:
        assert words_for(partial(partial(per_word, price=1.0), price=2.0)) == "given in Python: per_word"

    def test_what_is_alike_is_not_the_same(self) -> None:
        with pytest.raises(ValueError, match="two different things called 'Optional'"):
            replace_objects({"tools": {"one": Optional(), "other": Optional()}})

    def test_what_is_given_for_words_stands_where_they_were_read(self) -> None:
        table, given = replace_objects({"environment": {"name": "given in Python: Flaky"}}, [Flaky])
        (words,) = table["environment"].values()
        assert isinstance(words, ObjectPlaceholder)
        assert words.value is Flaky
        assert given == {"given in Python: Flaky": Flaky}


class TestPlaces:
    def test_a_table_without_what_is_not_set_stands_for_an_object(self) -> None:
        table, _ = replace_objects({"environment": Optional()})
        assert table == {"environment": {"name": "given in Python: Optional"}}

    def test_a_plain_class_is_a_function_of_a_tool_and_a_part_is_a_source_of_tools(self) -> None:
        table, _ = replace_objects({"tools": {"notes": Notes, "part": Optional}})
        assert table["tools"] == {
            "notes": {"name": "function", "call": f"{__name__}:Notes"},
            "part": {"name": f"{__name__}:Optional"},
        }

    @pytest.mark.parametrize(
        ("place", "part"),
        [("channel", Last), ("algorithm.credit", Median), ("algorithm.objective", SPO), ("algorithm.schedule", Rounds)],
    )
    def test_a_class_is_a_part_with_its_own_keys_left_as_they_are(self, place: str, part: type) -> None:
        room, _, key = place.rpartition(".")
        table, given = replace_objects({room: {key: part}} if room else {key: part})
        assert (table[room][key] if room else table[key]) == {"name": f"{part.__module__}:{part.__name__}"}
        assert not given

    def test_text_that_only_reads_like_such_words_is_text(self) -> None:
        said = "given in Python: a puzzle"
        read = marft.load_recipe(recipe(), {"agents.actor.instructions": said})
        assert next(agent for agent in read.agents if agent.role == "actor").instructions == said
        assert parse_recipe(recipe(), ["--agents.actor.instructions", said]) is not None
        assert said in to_toml(read)
