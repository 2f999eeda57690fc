"""Whether the team is worth it: where the truth is known, what is measured says so."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from marft.common.types import ActionKey
from marft.runs.run_folder import read_headline
from marft_lab.team_evaluation.options import PARTS, ComparisonOptions
from marft_lab.team_evaluation.report import write_report
from marft_lab.team_evaluation.tables import format_headline
from tests.nights import BY_NIGHT
from tests.number_teams import Played, accuracies, chance, heard_in, number_in


def reasoner_is_everything(key: ActionKey, prompt: str, weights: str) -> str:
    """A trained reasoner says the number; the actor repeats what it hears, and knows nothing alone."""
    if key.agent == "reasoner":
        return f"msg={number_in(prompt)};" if weights != "base" else "msg=1;"
    return f"msg={heard_in(prompt)};"


def reasoner_is_nothing(key: ActionKey, prompt: str, weights: str) -> str:
    """The reasoner says anything; the actor finds the number by itself, trained or not."""
    return f"msg={number_in(prompt)};" if key.agent == "actor" else f"msg={key.task};"


def reasoner_guesses(key: ActionKey, prompt: str, weights: str) -> str:
    """The reasoner is right half of the time, the actor repeats it."""
    if key.agent == "reasoner":
        return f"msg={number_in(prompt)};" if chance(key, 0.5) else "msg=1;"
    return f"msg={heard_in(prompt)};"


def actor_guesses(key: ActionKey, prompt: str, weights: str) -> str:
    """The actor is right half of the time, whatever it hears."""
    return f"msg={number_in(prompt)};" if key.agent == "actor" and chance(key, 0.5) else "msg=1;"


def team_of(*roles: str) -> dict[str, Any]:
    """Policies and agents, of whom the last answers."""
    agents = [{"role": role, "policy": role, "answers": role == roles[-1]} for role in roles]
    return {"policies": {role: {"model": "base"} for role in roles}, "agents": agents}


@pytest.fixture
def team(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Any:
    return lambda say, **changes: Played(monkeypatch, tmp_path, say, **changes)


class TestKnownTruth:
    def test_an_agent_whose_message_is_everything(self, team: Any) -> None:
        found = team(reasoner_is_everything).worth(only=["single", "swap", "leave-out", "ablation"], paraphrase="")
        got = accuracies(found)
        assert got["team"] == 1.0
        assert got["actor alone"] == got["reasoner unheard"] == got["silence"] == got["shuffled"] == 0.0
        assert got["reasoner untuned"] == 0.0
        assert got["actor untuned"] == 1.0
        (unheard,) = (row.values["accuracy"] for row in found.rows if row.name == "reasoner unheard")
        assert unheard.difference == -1.0
        assert unheard.difference_interval is not None
        assert unheard.difference_interval[1] < -0.6
        assert "the team is better" in format_headline(found)

    def test_an_agent_whose_message_is_nothing(self, team: Any) -> None:
        found = team(reasoner_is_nothing).worth(only=["single", "leave-out", "ablation"], paraphrase=lambda text: "?")
        assert {value for name, value in accuracies(found).items()} == {1.0}
        assert "reasoner paraphrased" in accuracies(found)
        for row in found.rows[1:]:
            interval = row.values["accuracy"].difference_interval
            assert row.values["accuracy"].difference == 0.0
            assert interval is not None
            assert interval[0] < 0 < interval[1]
        assert "do not tell" in format_headline(found)

    def test_a_single_agent_that_is_better_at_the_same_tokens(self, team: Any) -> None:
        """The reasoner's messages mislead; the actor by itself is right, several times for the price of the team."""

        def misled(key: ActionKey, prompt: str, weights: str) -> str:
            return f"msg={number_in(prompt)};" if key.agent == "actor" and "msg=" not in prompt else "msg=1;"

        found = team(misled).worth(only=["single"])
        assert accuracies(found)["actor alone"] == 1.0
        assert "the team is worse" in format_headline(found)
        budget = found.rows[0].tokens
        assert budget is not None
        assert all(row.tokens is not None and row.tokens <= budget for row in found.rows[1:])

    def test_checkpoints_that_play_together(self, team: Any) -> None:
        """Rows are the reasoner's checkpoints, columns the actor's: all hangs on the rows."""
        (matrix,) = team(reasoner_is_everything).worth(only=["swap"]).matrices
        assert (matrix.policy, matrix.others) == ("reasoner", "actor")
        assert list(matrix.checkpoints) == ["base", "step_000002", "step_000001"]
        values = [[row.values["accuracy"].value for row in rows] for rows in matrix.rows]
        assert values == [[0.0] * 3, [1.0] * 3, [1.0] * 3]

    @BY_NIGHT
    @pytest.mark.slow
    @pytest.mark.parametrize(("say", "reasoner", "actor"), [(reasoner_guesses, 0.25, 0.0), (actor_guesses, 0.0, 0.25)])
    def test_the_variance_of_the_reward_is_whose_chance_it_is(
        self, team: Any, say: Any, reasoner: float, actor: float
    ) -> None:
        found = team(say, environment={"name": "tests.number_teams:Numbers", "count": 120}, evaluation={"tasks": 120})
        shares = {
            share.agent: share for share in found.worth(only=["counterfactual"], resamples=3).counterfactual.shares
        }
        own = {role: share.own for role, share in shares.items()}
        for role, truth in (("reasoner", reasoner), ("actor", actor)):
            assert own[role] is not None
            assert own[role].value == pytest.approx(truth, abs=0.06)
            low, high = own[role].interval or (own[role].value, own[role].value)
            assert low - 1e-9 <= truth <= high + 1e-9
            low, high = shares[role].contribution.interval or (0.0, 0.0)
            assert low <= 0 <= high  # an action is as good as its policy, but for chance


class TestWhatIsSaid:
    def test_how_much_it_will_be_before_it_begins(self, team: Any) -> None:
        played = team(reasoner_is_everything)
        played.worth(tasks=10, only=["swap", "leave-out"])
        assert played.told == [
            "about 140 episodes of 10 held-out tasks (team 10, swap 10, cross-play 90, leave-out 30); single agents': at most"
        ]

    @BY_NIGHT
    @pytest.mark.slow
    def test_where_nobody_says_what_is_a_success_rewards_are_compared(self, team: Any, tmp_path: Path) -> None:
        environment = {"name": "tests.number_teams:Numbers", "tells": False}
        found = team(reasoner_is_everything, environment=environment).worth(tasks=4)
        assert found.measure == "reward"
        assert found.rows[0].values["reward"].value == 1.0
        assert any("never says what is a success" in text for _, text in found.notes)
        assert "reward 1.000" in format_headline(found)
        write_report(tmp_path / "worth", found)

    def test_agents_that_share_a_policy_cannot_swap(self, team: Any) -> None:
        agents = [
            {"role": "reasoner", "policy": "both"}, {"role": "actor", "policy": "both", "answers": True}
        ]  # fmt: skip
        found = team(
            reasoner_is_nothing, policies={"both": {"model": "base"}}, agents=agents
        ).worth(tasks=4, only=["swap", "leave-out"])  # fmt: skip
        said = dict.fromkeys(text for _, text in found.notes)
        assert "reasoner and actor share the policy both: they cannot swap, and nothing would change" in said
        assert not found.matrices
        assert "reasoner and actor untuned" in accuracies(found)

    def test_agents_that_see_nobody_have_no_messages(self, team: Any) -> None:
        found = team(reasoner_is_nothing, team={"organization": "parallel"}).worth(
            tasks=4, only=["ablation", "leave-out"]
        )
        assert [row.name for row in found.rows] == ["team", "reasoner untuned", "actor untuned"]
        assert any("nobody reads anything of anybody" in text for _, text in found.notes)

    def test_of_three_policies_all_orders_are_played_and_each_is_crossed(self, team: Any) -> None:
        found = team(reasoner_is_everything, **team_of("planner", "reasoner", "actor")).worth(tasks=2, only=["swap"])
        swapped = [row.name for row in found.rows[1:]]
        assert len(swapped) == 5
        assert "swapped: planner ⇄ reasoner" in swapped
        assert "swapped: reasoner for planner, actor for reasoner, planner for actor" in swapped
        assert [(matrix.policy, matrix.others) for matrix in found.matrices] == [
            ("planner", "reasoner, actor"), ("reasoner", "planner, actor"), ("actor", "planner, reasoner"),
        ]  # fmt: skip
        values = {m.policy: [[row.values["accuracy"].value for row in rows] for rows in m.rows] for m in found.matrices}
        assert values["reasoner"] == [[0.0] * 3, [1.0] * 3, [1.0] * 3]
        assert values["planner"] == values["actor"] == [[0.0, 1.0, 1.0]] * 3

    def test_who_is_never_asked_is_said_and_not_played(self, team: Any) -> None:
        table = team_of("planner", "worker", "idle", "writer")
        organization = {"organization": "hierarchical", "workers": ["worker", "idle"]}
        say = lambda key, prompt, weights: f"msg={number_in(prompt)};"  # noqa: E731
        found = team(say, team=organization, **table).worth(tasks=2, only=["leave-out", "counterfactual"])
        assert [row.name for row in found.rows] == [
            "team", "planner unheard", "worker unheard", "planner untuned", "worker untuned", "writer untuned",
        ]  # fmt: skip
        assert ("leave-out", "idle was never asked: nothing hangs on it") in found.notes
        assert found.counterfactual is not None
        assert [share.agent for share in found.counterfactual.shares] == ["planner", "worker", "writer"]

    def test_frozen_agents_are_neither_swapped_nor_untuned(self, team: Any) -> None:
        table = team_of("reasoner", "actor")
        table["policies"]["actor"]["train"] = "frozen"
        found = team(reasoner_is_everything, **table).worth(tasks=2, only=["swap", "leave-out"])
        assert [row.name for row in found.rows] == ["team", "reasoner unheard", "reasoner untuned"]
        assert any("actor: not trained" in text for _, text in found.notes)

    def test_one_agent_alone_has_nothing_to_be_held_against(self, team: Any) -> None:
        table = {"policies": {"a": {"model": "base"}}, "agents": [{"role": "a", "policy": "a"}]}
        played = team(lambda key, prompt, weights: f"msg={number_in(prompt)};", **table)
        with pytest.raises(ValueError, match=r"the team is one agent \(a\): of swap, ablation there is nothing"):
            played.worth(only=["swap", "ablation"])
        assert "the team is one agent already" in [text for _, text in played.worth(tasks=4).notes]

    def test_a_team_that_always_fails_is_no_result(self, team: Any) -> None:
        def fails(key: ActionKey, prompt: str, weights: str) -> str:
            raise OSError("gone")

        with pytest.raises((ValueError, OSError), match="gone"):
            team(fails).worth(tasks=3)

    @pytest.mark.parametrize(
        ("options", "message"),
        [
            ({"only": ["swaps"]}, "'swaps' is none of single, swap, .*did you mean 'swap'"),
            ({"samples": 0}, "samples is a whole number from 1 on"),
            ({"tasks": -1}, "tasks is a whole number from 0 on"),
            ({"paraphrase": "actr"}, "'actr' is no policy of the recipe; did you mean 'actor'"),
            ({"paraphrase": "nowhere:nothing"}, "nowhere"),
            ({"paraphrase": lambda text: 3}, "it made a int of 'msg="),
        ],
    )
    def test_what_cannot_be_asked_is_refused_in_words(self, team: Any, options: dict[str, Any], message: str) -> None:
        with pytest.raises(ValueError, match=message):
            team(reasoner_is_everything).worth(**{"tasks": 3, "only": ["ablation"], **options})


class TestGoingOn:
    def test_what_was_played_is_not_played_again(self, team: Any) -> None:
        played = team(reasoner_is_everything)
        first = played.worth(tasks=3)
        assert played.count > 0
        second = played.worth(tasks=3)
        assert played.count == 0
        assert second.as_json() == first.as_json()
        played.worth(tasks=3, ignore_cache=True, only=["ablation"])
        assert played.count > 0

    @pytest.mark.slow
    def test_one_that_was_stopped_goes_on_to_the_same_end(self, team: Any, tmp_path: Path) -> None:
        played = team(reasoner_guesses)
        played.stops = 40
        with pytest.raises(KeyboardInterrupt):
            played.worth(tasks=3)
        before, played.stops = played.count, 10**9
        stopped = played.worth(tasks=3)
        rest = played.count
        whole = played.worth(tasks=3, ignore_cache=True)
        assert before + rest == played.count
        assert _timeless(stopped.as_json()) == _timeless(whole.as_json())

    def test_other_tasks_weights_or_settings_are_played_anew(self, team: Any) -> None:
        played = team(reasoner_is_everything)
        for options in ({}, {"samples": 2}, {"tasks": 5}, {"checkpoint": "best"}):
            played.worth(**{"tasks": 4, "only": ["leave-out"], **options})
            assert played.count > 0, options
        played.run = played.run.model_copy(update={"seed": 7})
        played.worth(tasks=4, only=["leave-out"])
        assert played.count > 0

    def test_a_damaged_file_is_played_again(self, team: Any) -> None:
        played = team(reasoner_is_everything)
        played.worth(tasks=4, only=["leave-out"])
        for path in (played.folder.worth / "arms").iterdir():
            path.write_bytes(b"PAR1")
        assert accuracies(played.worth(tasks=4, only=["leave-out"]))["team"] == 1.0
        assert played.count > 0


def _timeless(table: dict[str, Any]) -> str:
    return json.dumps({**table, "rows": [{**row, "seconds": 0} for row in table["rows"]], "matrices": []})


@pytest.mark.slow
def test_pages_show_what_models_say_as_text(team: Any, tmp_path: Path) -> None:
    def hostile(key: ActionKey, prompt: str, weights: str) -> str:
        return "msg=1;<script>alert(1)</script>$\\frac{1"

    found = team(hostile).worth(tasks=3, paraphrase=lambda text: text + "<img src=x>")
    page = write_report(tmp_path / "worth", found).read_text()
    assert "<script>alert" not in page
    assert "data:image" not in page  # which the page itself forbids
    assert "<img src=x" not in page
    assert "&lt;script&gt;" in page
    for name in ("worth.json", "worth.md", "differences.svg", "contributions.svg", "cross-play-0.svg", "episode-0.svg"):
        assert (tmp_path / "worth" / name).stat().st_size > 0
    saved = json.loads((tmp_path / "worth" / "worth.json").read_text())
    assert [row["name"] for row in saved["rows"]] == [row.name for row in found.rows]
    assert read_headline(tmp_path / "worth" / "worth.json") == format_headline(found)
    (tmp_path / "worth" / "mine.svg").write_text("kept")
    write_report(tmp_path / "worth", replace(found, matrices=[], counterfactual=None))
    assert {path.name for path in (tmp_path / "worth").glob("*.svg")} == {"differences.svg", "mine.svg"}


def test_parts_are_played_in_their_order_whatever_the_order_asked_in() -> None:
    assert ComparisonOptions(only=("ablation", "single")).parts == ("single", "ablation")
    assert ComparisonOptions().parts == PARTS
