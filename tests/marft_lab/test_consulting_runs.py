"""Helpers in recipes and runs: what is refused, how questions are shared out, what is learned from replies."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import settings as examples
from hypothesis import strategies as st

from marft.agents.game import Attempt
from marft.cli.dry_run import check_setup
from marft.common.types import Task
from marft.common.usage import Usage
from marft.config.helpers import HelperCallSettings, HelperSettings, without_helpers
from marft.config.load import parse_recipe
from marft.config.recipe_checks import warn_untrained_replies
from marft.config.run import RunSettings
from marft.evaluation.session import EvaluationPlan, evaluate_checkpoints
from marft.rollout.rollout_batch import sample_attempts
from marft.runs.episode_files import read_episodes
from marft.runs.export.exporter import export_run
from marft.runs.export.manifest import load_export
from marft.runs.export.recipe import load_settings
from marft.runs.run_folder import RunFolder
from marft.trainer.train import train
from marft_lab.league.evaluation import matches
from tests.endpoint import says, serving
from tests.helpers import helped
from tests.nights import BY_NIGHT, MANY


class TestTheBudget:
    @given(
        budget=st.floats(0, 5), attempts=st.integers(1, 16), turn=st.integers(0, 2**62), step=st.integers(0, 50),
        anneal_start=st.integers(0, 20), lasts=st.integers(1, 20),
    )  # fmt: skip
    @examples(max_examples=MANY)
    def test_is_shared_out_as_evenly_as_whole_numbers_can(
        self, budget: float, attempts: int, turn: int, step: int, anneal_start: int, lasts: int
    ) -> None:
        helper = HelperSettings(policy="teacher")
        found = HelperCallSettings(
            helpers={"verify": helper}, budget=budget, anneal_start=anneal_start, anneal_end=anneal_start + lasts
        )
        allowance, shares = found.calls_per_action(step), found.calls_per_attempt(step, attempts, turn)
        expected = budget * (1 if step <= anneal_start else max(0.0, 1 - (step - anneal_start) / lasts))
        assert allowance == pytest.approx(expected)
        assert abs(sum(shares) - attempts * allowance) <= 0.5 + 1e-9
        assert {math.floor(allowance), math.ceil(allowance)} >= set(shares)

    def test_goes_to_training_attempts_alone(self, tmp_path: Path) -> None:
        run = helped(tmp_path, **{"consulting.budget": 0.5, "consulting.anneal_end": 2})
        tasks = [Task(f"t{n}", "x") for n in range(8)]
        given_out = [[a.max_helper_calls for a in sample_attempts(run, tasks, step, 0, 8)] for step in (0, 1, 2)]
        assert [sum(step) for step in given_out] == [16, 8, 0]
        assert len({tuple(given_out[0][n : n + 4]) for n in range(0, 32, 4)}) > 1, "who may ask is drawn"
        assert Attempt(tasks[0], "evaluation").max_helper_calls == 0


FAR = {"path": "gpt-x", "endpoint": {"url": "http://127.0.0.1:9/v1"}}


@pytest.mark.parametrize(
    ("changes", "why"),
    [
        (
            {"consulting.helpers.problem.policy": "helpr"},
            "consulting.helpers.problem: no policy is called 'helpr'; did",
        ),
        ({"policies.helper.train": "lora"}, "policy 'helper' learns, and what helpers say is no decision"),
        ({"consulting.agents": ["acter"]}, "consulting.agents: no agent is called 'acter'; did you mean 'actor'"),
        (
            {"consulting.call_template": "<ask {kind}>{question}"},
            "must be as <consult {kind}>{question}</consult>: marks before",
        ),
        ({"consulting.call_template": "{kind}: {question};"}, "marks before, between and after"),
        ({"consulting.call_template": "<{question} {kind}>"}, "marks before, between and after"),
        ({"consulting.call_template": "<ask {kind}{question}>"}, "marks before, between and after"),
        ({"consulting.call_template": "<ask {kind!r} {question}>"}, "marks before, between and after"),
        ({"consulting.call_template": "<ask {kind} {question}> {"}, "marks before, between and after"),
        ({"consulting.reply_template": "<re>"}, "must be as <reply>{text}</reply>"),
        ({"consulting.reply_template": "{text}{text}"}, "must be as <reply>{text}</reply>"),
        ({"consulting.helpers": {}}, "at least 1"),
        ({"consulting.anneal_start": 2}, "anneal_start must be before anneal_end"),
        (
            {"team": {"organization": "program", "command": ["true"]}},
            "consulting: organization 'program' asks agents in messages of its own",
        ),
        (
            {"models.far": FAR, "policies.reasoner": {"model": "far", "train": "frozen"}},
            "consulting.agents: 'reasoner' is behind an endpoint, which cannot go on from a reply",
        ),
    ],
)
def test_what_cannot_be_is_refused(tmp_path: Path, changes: dict[str, Any], why: str) -> None:
    with pytest.raises(ValueError, match=why.replace("{", r"\{").replace("(", r"\(")):
        helped(tmp_path, **changes)


def test_replies_that_nothing_learns_are_said(tmp_path: Path) -> None:
    run = helped(tmp_path)
    (said,) = warn_untrained_replies(run)
    assert check_setup(run)[-1] == said, "a dry run says so, too"
    assert "algorithm.name = 'aipo'" in said
    assert list(warn_untrained_replies(without_helpers(run))) == []
    assert list(warn_untrained_replies(helped(tmp_path, **{"algorithm.teammate_text": {"coefficient": 1.0}}))) == []


def test_what_is_held_to_a_grammar_asks_nobody(tmp_path: Path) -> None:
    table = helped(tmp_path).model_dump(mode="json", exclude_none=True)
    table["agents"][0]["sampling"]["regex"] = "a+"
    with pytest.raises(ValueError, match="held to a grammar, which no reply keeps"):
        parse_recipe(table)


def test_a_helper_may_be_behind_an_endpoint(tmp_path: Path) -> None:
    with serving(lambda body, number: says(" 12", usage=(7, 3))) as server:
        changes = {
            "models.teacher": {"path": "gpt-x", "endpoint": {"url": server.url}}, "policies.helper.model": "teacher",
            "algorithm.teammate_text": {"coefficient": 1.0}, "training.steps": 1,
        }  # fmt: skip
        run = helped(tmp_path, **changes)
        folder = RunFolder.create(run)
        train(run, folder)
    (row,) = folder.read_metrics()
    episodes = read_episodes(folder.episodes / "step_000001.parquet")
    asking = [action for episode in episodes for action in episode.actions if action.consultations]
    assert row["helper_calls"] == len(server.requests) == sum(len(action.consultations) for action in asking) > 0
    for action in asking:
        assert "<reply> 12</reply>" in action.text
        assert action.usage == sum([Usage(7, 3)] * len(action.consultations), Usage())
        assert action.teammate_log_probs is not None
        assert not action.teammate_log_probs.any(), "nobody says how likely it was: its author counts as sure"
    assert row["teammate_weight"] > 0


@pytest.mark.parametrize("level", [pytest.param("action", marks=BY_NIGHT), "token"])
def test_a_team_learns_from_replies_until_there_are_none(level: str, tmp_path: Path) -> None:
    """The untuned model restates problems, which is a question here: a helper goes on from them."""
    text = {"coefficient": 1.0, "weight": {"name": "bounded"}}
    run = helped(tmp_path, **{"algorithm.level": level, "algorithm.teammate_text": text, "training.steps": 3})
    folder = RunFolder.create(run)
    assert train(run, folder).step == 3
    rows = folder.read_metrics()
    assert [row.get("helper_calls", 0) > 0 for row in rows] == [True, True, False]
    assert ["teammate_weight" in row for row in rows] == [True, True, False]
    assert all(row["log_prob_difference_max"] < 1e-4 for row in rows)
    assert all(math.isfinite(row["policy_loss"]) for row in rows)
    actions = [a for episode in read_episodes(folder.episodes / "step_000001.parquet") for a in episode.actions]
    asking = [action for action in actions if action.consultations]
    assert {action.agent for action in asking} == {"reasoner"}
    for action in asking:
        (first, *_), known = action.consultations, action.teammate_log_probs
        assert action.text[first.place :].startswith(first.reply)
        assert known is not None
        assert len(known) == action.teammate_mask.sum() > 0
        assert known.min() < 0, "the helper has the agent's own tokens"
    (found,) = evaluate_checkpoints(run, folder, EvaluationPlan(("last",), ("sampled",), 8), lambda _=None: None)
    assert found.agents["reasoner"].get("helper_calls") is None


@pytest.mark.slow
@BY_NIGHT
def test_what_is_asked_is_the_same_in_a_process_apart_and_after_a_stop(tmp_path: Path) -> None:
    changes = {"algorithm.teammate_text": {"coefficient": 1.0}, "training.steps": 2, "consulting.anneal_end": 4}
    whole = helped(tmp_path / "whole", **changes)
    apart = helped(tmp_path / "apart", **changes, **{"rollout.workers": 2})
    for run in (whole, apart):
        train(run, RunFolder.create(run))
    begun = helped(tmp_path / "stopped", **changes, **{"checkpoints.every": 1})
    folder = RunFolder.create(begun)
    train(begun.model_copy(update={"training": begun.training.model_copy(update={"steps": 1})}), folder)
    train(begun, folder, resume=True)
    found = [RunFolder(Path(run.output) / run.name).read_metrics() for run in (whole, apart, begun)]
    for rows in zip(*found, strict=True):
        assert len({(row["policy_loss"], row["reward"], row.get("helper_calls")) for row in rows}) == 1
    assert found[0][0]["helper_calls"] > 0


def test_a_team_that_is_evaluated_has_no_helpers_loaded(tmp_path: Path) -> None:
    """Nor what only they need; a policy that also acts stays, and so does its model."""
    teacher = {"models.teacher": {"path": str(tmp_path / "is-not-there")}, "policies.helper.model": "teacher"}
    run = helped(tmp_path, **teacher)
    (found,) = evaluate_checkpoints(run, None, EvaluationPlan(("base",), ("greedy",), 2), lambda _=None: None)
    assert found.tasks == 2
    kinds = {"knowledge": {"policy": "helper"}, "verify": {"policy": "actor"}}
    left = without_helpers(
        helped(tmp_path, **teacher, **{"policies.actor.train": "frozen", "consulting.helpers": kinds})
    )
    assert ({*left.policies}, {*left.models}) == ({"reasoner", "actor"}, {*run.models} - {"teacher"})


def test_a_model_that_only_helpers_have_stays_where_it_reads_for_another(tmp_path: Path) -> None:
    far = {**FAR, "endpoint": {**FAR["endpoint"], "local_model": "teacher"}}
    changes = {"models.teacher": {"path": "tiny"}, "policies.helper.model": "teacher", "models.far": far}
    acts = {"policies.actor": {"model": "far", "train": "frozen"}}
    assert "teacher" in without_helpers(helped(tmp_path, **changes, **acts)).models


def test_versions_meet_without_helpers(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    opened = list[RunSettings]()

    def open_(run: RunSettings) -> Any:
        opened.append(run)
        raise KeyboardInterrupt

    run = helped(tmp_path)
    monkeypatch.setattr(matches, "game_sides", lambda _: ("north", "south"))
    monkeypatch.setattr(matches, "find_versions", lambda *_: {"base": None, "last": None})
    monkeypatch.setattr(matches, "combine_versions", lambda run, _: run)
    monkeypatch.setattr(matches, "pair_attempts", lambda *_: [])
    monkeypatch.setattr(matches, "open_rollout_runner", open_)
    with pytest.raises(KeyboardInterrupt):
        matches.play_league(run, RunFolder(tmp_path), 2, 2, lambda _=None: None)
    assert "helper" in run.policies
    assert "helper" not in opened[0].policies


@pytest.mark.slow
def test_helpers_are_no_part_of_an_export(tmp_path: Path) -> None:
    run = helped(
        tmp_path, **{"models.teacher": {"path": "tiny"}, "policies.helper.model": "teacher", "training.steps": 1}
    )
    folder = RunFolder.create(run)
    train(run, folder)
    exported = load_export(export_run(folder, "last", tmp_path / "team"))
    assert set(exported.manifest.policies) == {"reasoner", "actor"}
    assert set(exported.manifest.models) == {"base"}
    assert load_settings(exported).consulting is None
