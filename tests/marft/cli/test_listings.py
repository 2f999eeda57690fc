"""What there is to name in a recipe is listed by the command, readable at 80 columns."""

from __future__ import annotations

import tomllib
from collections.abc import Iterator
from pathlib import Path

import pytest

from marft.cli import listings
from marft.cli.console import evaluation_table, wide_console
from marft.common.packages import bundled_plugins
from marft.config import load_recipe
from marft.config.algorithms import DESCRIPTIONS
from marft.config.bundled import bundled_names
from marft.evaluation.checkpoint_results import CheckpointResult, MetricResult, _build_table
from tests.marft.cli.test_cli import run

NARROW = 80


@pytest.fixture
def narrow(monkeypatch: pytest.MonkeyPatch) -> None:
    """A terminal of 80 columns."""

    def console() -> object:
        made = wide_console()
        made.width = NARROW
        return made

    monkeypatch.setattr(listings, "wide_console", console)


class TestRecipes:
    def test_each_stands_beside_what_it_is(self, capsys: pytest.CaptureFixture[str]) -> None:
        listed = run(capsys, "recipes")
        assert all(name in listed for name in bundled_names())
        assert "demo_single One agent learns the demo's sums" in listed

    def test_a_printed_one_is_the_file_and_can_be_read(
        self, capsys: pytest.CaptureFixture[str], tmp_path: Path
    ) -> None:
        listings.list_recipes("demo")
        mine = tmp_path / "mine.toml"
        mine.write_text(capsys.readouterr().out)
        assert mine.read_text().startswith("# A reasoner and an actor")
        same = load_recipe(mine).model_copy(update={"recipe_folder": load_recipe("demo").recipe_folder})
        assert same == load_recipe("demo")  # but for where it lies

    def test_one_that_does_not_ship_is_refused(self, capsys: pytest.CaptureFixture[str]) -> None:
        assert run(capsys, "recipes", "dmeo", status=2).endswith(
            "no bundled recipe is called 'dmeo'; did you mean 'demo'?"
        )


class TestEnvironments:
    def test_each_stands_beside_what_it_is_and_its_keys(self, capsys: pytest.CaptureFixture[str]) -> None:
        listed = run(capsys, "environments")
        assert all(name in listed for name in bundled_plugins("environments"))
        said = [line.rstrip() for line in listed.splitlines() if not line.lstrip().startswith("keys:")]
        assert "Mathematics problems from files or a Hugging Face data set" in listed
        assert not [line for line in said if line.endswith((" a", " the", " Its", ":"))]
        assert "math Mathematics problems from files" in listed
        assert "keys: dataset, " in listed

    def test_one_is_printed_as_a_recipe_has_it(self, capsys: pytest.CaptureFixture[str]) -> None:
        listings.list_environments("math")
        printed = capsys.readouterr().out
        assert "# path = …  (needed)" in printed
        table = tomllib.loads(printed)["environment"]
        assert (table["name"], table["timeout_seconds"]) == ("math", 5.0)

    def test_data_sets_are_listed(self, capsys: pytest.CaptureFixture[str]) -> None:
        listed = run(capsys, "environments", "reasoning_gym").split()
        assert {"chain_sum", "gcd", "sudoku"} <= set(listed)

    def test_one_of_an_import_path_is_printed_too(self, capsys: pytest.CaptureFixture[str]) -> None:
        assert "highest = 10" in run(capsys, "environments", "marft.examples.plugins:Guess")

    def test_a_broken_package_does_not_hide_the_others(
        self, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
    ) -> None:
        info = tmp_path / "their_package-1.0.dist-info"
        info.mkdir()
        (info / "METADATA").write_text("Metadata-Version: 2.1\nName: their-package\nVersion: 1.0\n")
        (info / "entry_points.txt").write_text("[marft.environments]\ntheirs = their_package.nowhere:Env\n")
        monkeypatch.syspath_prepend(str(tmp_path))
        listed = run(capsys, "environments")
        assert "theirs cannot be used: cannot import 'their_package.nowhere:Env'" in listed
        assert "reasoning_gym Questions" in listed


@pytest.mark.usefixtures("narrow")
class TestNarrowTerminals:
    def lines(self, capsys: pytest.CaptureFixture[str]) -> Iterator[str]:
        return (line.rstrip() for line in capsys.readouterr().out.splitlines())

    @pytest.mark.parametrize("name", ["", "math", "reasoning_gym"])
    def test_environments_fit(self, capsys: pytest.CaptureFixture[str], name: str) -> None:
        listings.list_environments(name)
        assert max(map(len, self.lines(capsys))) <= NARROW

    def test_recipes_fit(self, capsys: pytest.CaptureFixture[str]) -> None:
        listings.list_recipes("")
        assert max(map(len, self.lines(capsys))) <= NARROW

    def test_algorithms_fit_and_no_word_is_broken(self, capsys: pytest.CaptureFixture[str]) -> None:
        listings.list_algorithms("")
        lines = list(self.lines(capsys))
        assert max(map(len, lines)) <= NARROW
        words = {word for line in lines for word in line.split()}
        assert words >= {*DESCRIPTIONS, "centralized", "simultaneous,", "counterfactual,"}

    def test_evaluations_and_comparisons_lose_nothing(self, capsys: pytest.CaptureFixture[str]) -> None:
        row = {
            "checkpoint": "step_000050", "mode": "sampled", "shuffled_messages": True, "tasks": 500, "accuracy": 0.478,
            "interval": [0.43, 0.52], "reward": 0.478, "reward_interval": [0.43, 0.52], "failed": 3, "unknown": 2,
        }  # fmt: skip
        measured = MetricResult(0.4, 0.478, (0.43, 0.52), 0.078, (0.02, 0.12), 0.3)
        console = listings.wide_console()
        console.print(evaluation_table([row]))
        console.print(evaluation_table([{**row, "failed": 0, "unknown": 0}]))
        result = CheckpointResult("demo_only_reasoner", "step_000050", "sampled", 500, 1, measured, None)
        console.print(_build_table([result] * 6))
        shown = "\n".join(self.lines(capsys))
        assert max(map(len, shown.splitlines())) <= NARROW
        assert "…" not in shown
        assert shown.count("step_000050") == shown.count("sampled") == 8
        assert shown.count("demo_only_reasoner") == shown.count("+2.0 to +12.0") == 6
