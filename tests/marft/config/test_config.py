"""Recipes: strict at any depth, with errors that name the key and the remedy."""

from __future__ import annotations

import os
import subprocess
import sys
import tomllib
from collections.abc import Callable
from pathlib import Path
from typing import Any, ClassVar

import pytest

from marft.agents.organizations import Chain
from marft.common.packages import bundled_plugins
from marft.config import RunSettings, load_recipe, parse_recipe, to_toml
from marft.config.algorithms import PRESETS
from marft.config.bundled import bundled_names
from marft.config.plugins import Plugin, find_plugin
from tests.helpers import recipe
from tests.plugin_kinds import KINDS


class Collecting(Chain):
    names: tuple[str, ...] = ("a",)
    seen: tuple[tuple[int, int], ...] = ()
    place: Path = Path("here")
    kinds: frozenset[str] = frozenset({"x"})


def complaint(*overrides: str, **changes: Any) -> str:
    with pytest.raises(ValueError, match=r"recipe:|--") as caught:
        parse_recipe(recipe(**changes), overrides)
    return str(caught.value)


@pytest.mark.parametrize("name", bundled_names())
def test_every_shipped_recipe_parses_and_is_complete(name: str) -> None:
    run = load_recipe(name)
    assert run.name == name
    assert load_again(to_toml(run)) == run


def load_again(text: str):  # type: ignore[no-untyped-def]
    return parse_recipe(tomllib.loads(text))


@pytest.mark.parametrize(
    ("override", "message"),
    [
        (("--sede", "1"), "unknown key 'sede'; did you mean 'seed'?"),
        (("--algorithm.levle", "token"), "algorithm: unknown key 'levle'; did you mean 'level'?"),
        (("--algorithm.credit.gama_step", "0.9"), "algorithm.credit: unknown key 'gama_step'; did you mean 'gamma_step'?"),
        (("--policies.actor.lora.rnk", "4"), "policies.actor.lora: unknown key 'rnk'; did you mean 'rank'?"),
        (("--agents.actor.sampling.temprature", "1"), "agents.actor.sampling: unknown key 'temprature'"),
        (("--environment.parms", "{}"), "environment: unknown key 'parms'; did you mean 'params'?"),
        (("--environment.params.min_term", "3"), "no parameter 'min_term'; did you mean 'min_terms'?"),
        (("--environment.dataset", "chain_sums"), "no data set 'chain_sums'; did you mean 'chain_sum'?"),
        (("--environment.name", "maths"), "no environment is called 'maths'; did you mean 'math'?"),
        (("--algorithm.name", "marf"), "no algorithm is called 'marf'; did you mean 'marft'?"),
        (("--algorithm.credit.name", "gea"), "no credit is called 'gea'; did you mean 'gae'?"),
        (("--team.organization", "chian"), "no organization is called 'chian'; did you mean 'chain'?"),
    ],
)  # fmt: skip
def test_unknown_keys_and_names_are_errors_with_a_suggestion(override: tuple[str, ...], message: str) -> None:
    assert message in complaint(*override)


@pytest.mark.parametrize(
    ("override", "message"),
    [
        (("--training.steps", "many"), "training.steps: input should be a valid integer (given: 'many')"),
        (
            ("--algorithm.sampler_correction", "none"),
            "sampler_correction: is a table of keys, as in { key = value } (given: 'none')",
        ),
        (
            ("--channel.name", "record", "--channel.fields", "['state']"),
            "channel.fields: is a table of keys, as in { key = value } (given: ['state'])",
        ),
        (("--training.steps", "0"), "training.steps: input should be greater than or equal to 1"),
        (("--training.steps", "2.5"), "training.steps"),
        (("--seed", '"1"'), "seed: input should be a valid integer"),
        (("--algorithm.kl_stop", "nan"), "algorithm.kl_stop"),
        (("--algorithm.level", "word"), "algorithm.level: input should be 'action' or 'token'"),
        (("--evaluation.modes", "['guess']"), "evaluation.modes"),
        (("--name", "a/b"), "must be usable as a folder name"),
        (("--agents.actor.role", '"the actor"'), "a role is a name that organizations call"),
        (("--agents.actor.role", '"class"'), "no word of Python's own (given: 'class')"),
        (("--evaluation.modes", "[]"), "evaluation.modes: needs at least 1"),
        (("--agents.actor.tools", "['clock']"), "no tool is called 'clock'; describe it under [tools.clock]"),
    ],
)
def test_wrong_types_and_values_name_the_key(override: tuple[str, ...], message: str) -> None:
    assert message in complaint(*override)


def test_a_list_is_not_called_empty_because_its_entry_is_wrong() -> None:
    assert complaint("--evaluation.modes", "['guess']").count("evaluation.modes") == 1


class TestReferences:
    def test_an_agent_that_names_no_policy(self) -> None:
        assert "agents.actor: no policy is called 'acter'; did you mean 'actor'?" in complaint(
            "--agents.actor.policy", "acter"
        )

    def test_a_policy_that_no_agent_uses(self) -> None:
        assert "policies.spare: no agent uses it" in complaint("--policies.spare.model", "base")

    def test_a_policy_whose_model_is_missing_and_a_model_nobody_uses(self) -> None:
        text = complaint("--policies.actor.model", "bass", "--models.other.path", "tiny")
        assert "policies.actor: no model is called 'bass'; did you mean 'base'?" in text
        assert "models.other: no policy uses it" in text

    def test_two_agents_with_one_role(self) -> None:
        assert "2 agents are called 'actor'" in complaint("--agents.reasoner.role", "actor")

    def test_a_team_in_which_nobody_answers(self) -> None:
        assert "nobody answers" in complaint("--agents.actor.answers", "false")

    def test_a_single_agent_answers_without_being_told(self) -> None:
        table = recipe()
        table["policies"] = {"actor": {"model": "base"}}
        table["agents"] = [{"role": "actor", "policy": "actor"}]
        assert parse_recipe(table).agents[0].answers

    def test_all_problems_are_reported_at_once(self) -> None:
        text = complaint("--sede", "1", "--training.steps", "x", "--algorithm.levle", "token")
        assert all(word in text for word in ("sede", "training.steps", "levle"))


class TestEntryPoints:
    """An installed package gives its parts names of their own."""

    @pytest.fixture
    def installed(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        info = tmp_path / "their_package-1.0.dist-info"
        info.mkdir()
        (info / "METADATA").write_text("Metadata-Version: 2.1\nName: their-package\nVersion: 1.0\n")
        (info / "entry_points.txt").write_text(
            "[marft.credits]\nmedian = marft.examples.plugins:Median\n[marft.objectives]\nspo = marft.examples.plugins:SPO\n"
        )
        monkeypatch.syspath_prepend(str(tmp_path))

    def test_their_names_work_in_a_recipe_and_in_suggestions(self, installed: None) -> None:
        run = parse_recipe(recipe(), [
            "--algorithm.credit", "{ name = 'median' }", "--algorithm.critic.kind", "none",
            "--algorithm.objective", "{ name = 'spo', width = 0.3 }",
        ])  # fmt: skip
        assert (run.algorithm.credit.name, run.algorithm.objective.name) == ("median", "spo")
        assert "did you mean 'median'?" in complaint("--algorithm.credit", "{ name = 'medain' }")


class TestSampling:
    """A policy in training samples by temperature alone."""

    @pytest.mark.parametrize("option", [("top_p", "0.9"), ("top_k", "50")])
    def test_top_p_and_top_k_are_refused_for_policies_in_training(self, option: tuple[str, str]) -> None:
        assert "samples by temperature alone" in complaint(f"--agents.actor.sampling.{option[0]}", option[1])

    def test_temperature_zero_never_explores(self) -> None:
        assert "never explores" in complaint("--agents.actor.sampling.temperature", "0.0")

    def test_frozen_policies_may_sample_as_they_like(self) -> None:
        options = (
            "--policies.actor.train",
            "frozen",
            "--agents.actor.sampling.top_p",
            "0.9",
            "--agents.actor.sampling.temperature",
            "0.0",
        )
        assert parse_recipe(recipe(), options).agents[1].sampling.top_p == 0.9


class TestPresets:
    @pytest.mark.parametrize("name", list(PRESETS))
    def test_every_preset_parses_by_name_alone(self, name: str) -> None:
        assert parse_recipe(recipe(algorithm={"name": name}), ["--training.steps", "9"]).algorithm.name == name

    def test_a_recipe_changes_a_preset_field_by_field(self) -> None:
        run = parse_recipe(
            recipe(algorithm={"name": "marft-paper-table5", "credit": {"gamma_step": 0.5}, "kl_stop": 0.1})
        )
        assert run.algorithm.credit.gamma_step == 0.5  # type: ignore[attr-defined]
        assert run.algorithm.credit.gamma_token == 0.99  # type: ignore[attr-defined]
        assert run.algorithm.kl_stop == 0.1
        assert run.algorithm.optimizer.learning_rate == 1e-6

    def test_naming_another_plugin_drops_the_presets_settings_of_the_old_one(self) -> None:
        run = parse_recipe(recipe(algorithm={"schedule": {"name": "agent-by-agent", "interval": 7}}))
        assert run.algorithm.schedule.model_dump() == {"name": "agent-by-agent", "interval": 7}

    def test_token_aggregations_are_refused_at_action_level(self) -> None:
        assert "counts tokens, but level = 'action'" in complaint("--algorithm.aggregation", "token-mean")
        assert parse_recipe(recipe(), ["--algorithm.level", "token"]).algorithm.resolved_aggregation == "token-mean"

    def test_the_papers_settings_are_the_papers(self) -> None:
        paper = parse_recipe(recipe(algorithm={"name": "marft-paper-table5"})).algorithm
        assert (paper.optimizer.learning_rate, paper.critic.learning_rate, paper.optimizer.epsilon) == (
            1e-6,
            1e-5,
            1e-5,
        )
        assert (paper.objective.clip, paper.critic.loss, paper.critic.coefficient) == (0.2, "huber", 1.0)  # type: ignore[attr-defined]
        assert (paper.optimizer.max_gradient_norm, paper.critic.hidden_size, paper.epochs, paper.minibatches) == (
            0.5,
            64,
            1,
            1,
        )
        assert (paper.kl_stop, paper.entropy_coefficient, paper.denominator) == (0.02, 0.01, "pooled")
        assert (paper.credit.gamma_token, paper.credit.lambda_token) == (0.99, 0.95)  # type: ignore[attr-defined]


class TestRelabelling:
    """A recipe says what it runs, also one that was written out whole."""

    RECIPE: ClassVar = {
        "algorithm": {"kl_stop": 0.1, "optimizer": {"learning_rate": 1e-2}, "critic": {"hidden_size": 32}}
    }

    def whole(self) -> dict[str, Any]:
        return tomllib.loads(to_toml(parse_recipe(recipe(**self.RECIPE))))

    @pytest.mark.parametrize("name", [name for name in PRESETS if name != "marft"])
    def test_a_preset_named_over_a_complete_recipe_is_the_preset_named_over_the_recipe_itself(self, name: str) -> None:
        named = ["--algorithm.name", name, "--training.steps", "9"]
        over = parse_recipe(self.whole(), named).algorithm
        assert over == parse_recipe(recipe(**self.RECIPE), named).algorithm
        assert (over.name, over.kl_stop, over.optimizer.learning_rate) == (name, 0.1, 1e-2)

    def test_a_complete_recipe_whose_preset_was_renamed_by_hand_runs_what_it_says(self) -> None:
        table = self.whole()
        table["algorithm"]["name"] = "grpo"
        assert parse_recipe(table).algorithm.credit.name == "grpo"
        assert parse_recipe(table).algorithm.kl_stop == 0.1

    def test_other_overrides_change_the_preset_named_also_where_they_say_what_the_old_one_said(self) -> None:
        run = parse_recipe(self.whole(), ["--algorithm.normalize_advantages", "true", "--algorithm.name", "grpo"])
        assert run.algorithm.normalize_advantages

    def test_a_complete_recipe_stays_as_it_is_under_its_own_name(self) -> None:
        assert parse_recipe(self.whole(), ["--algorithm.name", "marft"]) == parse_recipe(recipe(**self.RECIPE))
        changed = self.whole()
        changed["algorithm"]["credit"]["gamma_step"] = 0.5
        assert parse_recipe(changed).algorithm.credit.gamma_step == 0.5  # type: ignore[attr-defined]

    def test_what_does_not_fit_the_preset_named_is_refused(self) -> None:
        whole = tomllib.loads(to_toml(parse_recipe(recipe(algorithm={"credit": {"lambda_agent": 0.5}}))))
        with pytest.raises(ValueError, match=r"algorithm.credit: unknown key 'lambda_agent'"):
            parse_recipe(whole, ["--algorithm.name", "grpo"])

    def test_what_is_written_out_can_be_read_again_wherever_the_kl_goes(self) -> None:
        run = parse_recipe(recipe(algorithm={"kl": {"coefficient": 0.1, "apply_to": "reward"}}))
        assert load_again(to_toml(run)) == run


class TestOverrides:
    def test_values_are_toml_or_plain_words(self) -> None:
        run = parse_recipe(
            recipe(), ["--algorithm.level", "token", "--training.steps=7", "--policies.actor.lora", "{rank = 2}"]
        )
        assert (run.algorithm.level, run.training.steps, run.policies["actor"].lora.rank) == ("token", 7, 2)

    def test_agents_go_by_role_or_number(self) -> None:
        run = parse_recipe(recipe(), ["--agents.actor.guidance", "Hurry.", "--agents.0.instructions", "Think."])
        assert (run.agents[1].guidance, run.agents[0].instructions) == ("Hurry.", "Think.")
        assert "no entry 'actr'; did you mean 'actor'?" in complaint("--agents.actr.guidance", "x")

    def test_the_recipe_given_is_not_changed(self) -> None:
        table = recipe()
        parse_recipe(table, ["--agents.actor.guidance", "x", "--policies.actor.lora.rank", "2"])
        assert table == recipe()

    @pytest.mark.parametrize(
        ("words", "message"), [(["steps", "3"], "unexpected argument"), (["--training.steps"], "needs a value")]
    )
    def test_malformed_overrides_say_what_they_should_look_like(self, words: list[str], message: str) -> None:
        assert message in complaint(*words)

    def test_a_key_below_a_value_is_refused(self) -> None:
        assert "name is no table" in complaint("--name.more", "1")


class TestBareWords:
    """A word in the place of a table that is a plugin or a preset names it."""

    def test_an_algorithm(self) -> None:
        assert parse_recipe(recipe(), ["--algorithm", "grpo"]) == parse_recipe(recipe(), ["--algorithm.name", "grpo"])
        assert "did you mean 'grpo'?" in complaint("--algorithm", "grop")

    def test_over_a_complete_recipe_it_is_the_preset_all_the_same(self) -> None:
        whole = tomllib.loads(to_toml(parse_recipe(recipe())))
        assert parse_recipe(whole, ["--algorithm", "rloo"]).algorithm.credit.name == "rloo"

    @pytest.mark.parametrize(
        ("key", "word", "named"),
        [
            ("team", "parallel", lambda run: run.team), ("channel", "last", lambda run: run.channel),
            ("algorithm.credit", "step-gae", lambda run: run.algorithm.credit),
            ("algorithm.schedule", "agent-by-agent", lambda run: run.algorithm.schedule),
            ("algorithm.objective", "marft.examples.plugins:SPO", lambda run: run.algorithm.objective),
            ("environment", "marft.examples.plugins:Guess", lambda run: run.environment),
        ],
    )  # fmt: skip
    def test_a_plugin(self, key: str, word: str, named: Callable[[RunSettings], Plugin]) -> None:
        assert named(parse_recipe(recipe(), [f"--{key}", word])).name == word

    def test_keys_stay_under_the_same_name_and_go_with_another(self) -> None:
        team = {"organization": "chain", "visible": "previous"}
        assert getattr(parse_recipe(recipe(team=team), ["--team", "chain"]).team, "visible") == "previous"  # noqa: B009
        changed = parse_recipe(recipe(team=team), ["--team", "parallel", "--team.answer", "vote"]).team
        assert changed.model_dump() == {"organization": "parallel", "answer": "vote"}

    @pytest.mark.parametrize(
        "words",
        [
            ["--engine", "vllm", "--engine.replicas", "2"], ["--engine.kind", "vllm", "--engine.replicas", "2"],
            ["--engine.replicas", "2", "--engine.kind", "vllm"],
        ],
    )  # fmt: skip
    def test_another_engine_over_a_complete_recipe_has_none_of_the_keys_of_the_one_before(
        self, words: list[str]
    ) -> None:
        whole = tomllib.loads(to_toml(parse_recipe(recipe(), ["--engine.max_batch_size", "7"])))
        engine = parse_recipe(whole, words).engine.model_dump()
        assert (engine["replicas"], engine["max_batch_size"], "admission" in engine) == (2, 256, False)
        assert parse_recipe(whole, ["--engine.kind", "local"]).engine.model_dump()["max_batch_size"] == 7

    def test_what_begins_like_a_table_is_none(self) -> None:
        assert "'{nam' is no TOML" in complaint("--environment", "{nam")
        assert "'{nam' is no TOML" in complaint("--algorithm", "{nam")


class TestFiles:
    def test_a_missing_recipe(self, tmp_path: Path) -> None:
        with pytest.raises(ValueError, match="no recipe at"):
            load_recipe(tmp_path / "none.toml")

    def test_a_recipe_that_is_no_toml(self, tmp_path: Path) -> None:
        path = tmp_path / "bad.toml"
        path.write_text("name = ")
        with pytest.raises(ValueError, match="is not valid TOML"):
            load_recipe(path)


class TestPlugins:
    @pytest.mark.parametrize(("kind", "name"), [(kind, name) for kind in KINDS for name in bundled_plugins(kind)])
    def test_every_built_in_can_be_found(self, kind: str, name: str) -> None:
        assert find_plugin(kind, name)

    def test_a_class_of_the_users_own_by_import_path(self) -> None:
        run = parse_recipe(recipe(team={"organization": "tests.plugins:Reversed", "loud": True}))
        assert run.team.loud is True  # type: ignore[attr-defined]
        assert run.team.model_dump() == {"organization": "tests.plugins:Reversed", "loud": True}

    def test_what_cannot_be_imported_or_is_no_plugin(self) -> None:
        assert "cannot import 'nowhere:Thing'" in complaint("--team.organization", "nowhere:Thing")
        assert "must derive from" in complaint("--team.organization", "pathlib:Path")

    @pytest.mark.parametrize("given", [{}, {"names": ["b"], "seen": [[1, 2]], "place": "there", "kinds": ["x", "y"]}])
    def test_tuples_sets_and_paths_of_a_plugin_are_read_from_what_they_are_written_as(
        self, given: dict[str, Any]
    ) -> None:
        run = parse_recipe(recipe(team={"organization": "tests.marft.config.test_config:Collecting", **given}))
        assert load_again(to_toml(run)) == run
        assert isinstance(run.team.names, tuple)  # type: ignore[attr-defined]

    @pytest.mark.parametrize(
        "given", [{"names": "b"}, {"names": [1]}, {"seen": [["1", 2]]}, {"seen": [[1]]}, {"place": 3}, {"kinds": [1.5]}]
    )
    def test_what_stands_in_them_is_not_bent_to_fit(self, given: dict[str, Any]) -> None:
        assert f"team.{next(iter(given))}" in complaint(
            team={"organization": "tests.marft.config.test_config:Collecting", **given}
        )


@pytest.mark.slow
def test_configuration_imports_no_torch() -> None:
    code = "import sys, marft.config, marft.cli.main, marft_serve.cli.serving, marft_lab.federated.settings; print('torch' in sys.modules, 'transformers' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, env={**os.environ})
    assert done.stdout.split() == ["False", "False"]


@pytest.mark.slow
def test_parsing_a_recipe_imports_no_torch() -> None:
    code = (
        "import sys; from marft.config import load_recipe; load_recipe('math_dual_vetted'); "
        "print('torch' in sys.modules)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.split() == ["False"]


@pytest.mark.parametrize("encoding", ["utf-16", "utf-32", "latin-1"])
def test_a_recipe_in_another_encoding_is_told_so(tmp_path: Path, encoding: str) -> None:
    path = tmp_path / "recipe.toml"
    path.write_text('name = "für"\n', encoding=encoding)
    with pytest.raises(ValueError, match=r"recipe\.toml is not in UTF-8 .*save it as UTF-8"):
        load_recipe(path)


def test_a_number_too_long_to_write_is_refused_by_its_key() -> None:
    with pytest.raises(ValueError, match=r"seed: .*given: a number of thousands of digits"):
        parse_recipe({"seed": 16**10_000})
