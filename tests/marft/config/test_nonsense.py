"""Values that no run can mean: each is refused, with what is wrong and what to do."""

from __future__ import annotations

import types
from typing import Annotated, Any, Union, get_args, get_origin

import pytest
from pydantic import ConfigDict, TypeAdapter, ValidationError

from marft.common.packages import bundled_plugins
from marft.config import agents as agent_settings
from marft.config import algorithm, endpoint, load_recipe, models, parse_recipe, run, to_toml
from marft.config.plugins import find_plugin
from marft.config.sections import section_class, section_names
from marft.config.settings import Settings
from tests.helpers import recipe
from tests.plugin_kinds import KINDS
from tests.satellites import NEEDS_LAB

STRICT = ConfigDict(strict=True, allow_inf_nan=False)


def every_class() -> list[type[Settings]]:
    ours = [
        value
        for module in (algorithm, endpoint, models, run, agent_settings)
        for value in vars(module).values()
        if isinstance(value, type) and issubclass(value, Settings)
    ]
    return list(
        dict.fromkeys(
            [
                *ours,
                *map(section_class, section_names()),
                *(find_plugin(kind, name) for kind in KINDS for name in bundled_plugins(kind)),
            ]
        )
    )


def numbers() -> list[tuple[str, Any]]:
    """Every field of every table that is a number, with what it takes."""
    found = []
    for cls in every_class():
        for name, field in cls.model_fields.items():
            inner = get_args(field.annotation) if get_origin(field.annotation) in (Union, types.UnionType) else ()
            plain = {get_args(one)[0] if get_origin(one) is Annotated else one for one in (*inner, field.annotation)}
            if plain & {int, float}:
                taken: Any = field.annotation
                for constraint in field.metadata:
                    taken = Annotated[taken, constraint]
                found.append((f"{cls.__name__}.{name}", TypeAdapter(taken, config=STRICT)))
    return found


NUMBERS = numbers()


def test_the_walk_finds_the_tables() -> None:
    assert len(NUMBERS) > 70
    assert {"RolloutSettings.tasks_per_step", "PPO.clip", "Debate.rounds"} <= {name for name, _ in NUMBERS}


@pytest.mark.parametrize(("name", "taken"), NUMBERS, ids=lambda value: value if isinstance(value, str) else "")
def test_no_number_takes_a_truth_value_or_what_is_beyond_all_bounds(name: str, taken: Any) -> None:
    for value in (True, False, float("nan"), float("inf"), -float("inf"), 10**30, -(10**30), 1e300, "1"):
        with pytest.raises(ValidationError):
            taken.validate_python(value)


def complaint(*overrides: str, **changes: Any) -> str:
    with pytest.raises(ValueError, match="recipe:") as caught:
        parse_recipe(recipe(**changes), overrides)
    return str(caught.value)


@pytest.mark.parametrize(
    ("overrides", "told"),
    [
        (("--agents.actor.sampling.stop", "['']"), "an empty text would end every action before it begins"),
        (("--agents.actor.sampling.temperature", "1e-9"), "use 0, which is"),
        (("--agents.actor.sampling.temperature", "1e9"), "less than or equal to 100"),
        (("--agents.actor.tools", "['a', 'a']"), "names 'a' twice"),
        (("--agents.actor.skills", "['']"), "must hold no empty name"),
        (("--evaluation.modes", "[]"), "at least 1 item"),
        (("--evaluation.modes", "['greedy', 'greedy']"), "names a mode twice"),
        (("--policies.actor.lora.target_modules", "[]"), "at least 1 item"),
        (("--policies.actor.lora.rank", "129"), "129 is more than the 128 dimensions of model 'base'"),
        (("--output", ""), "output"),
        (("--seed", "9223372036854775808"), "seed"),
        (("--algorithm.optimizer.beta1", "1.0"), "less than 1"),
        (("--algorithm.optimizer.learning_rate", "3.0"), "less than or equal to 1"),
        (("--algorithm.objective.clip", "1.0"), "less than 1"),
        (("--algorithm.optimizer.learning_rate", "1e-13"), "learning_rate"),
        (("--policies.actor.learning_rate", "1e-30"), "learning_rate"),
        (("--algorithm.optimizer.warmup_steps", "20"), "would rise to 0.1 of its height"),
        (("--algorithm.optimizer", "{ learning_rate = 0.5, weight_decay = 2.0 }"), "takes all of a weight in a step"),
        (("--algorithm.optimizer.max_gradient_norm", "1e-30"), "comes to nothing"),
        (("--algorithm.team_kl", "1e-30"), "comes to nothing"),
        (("--algorithm.kl_stop", "1e-30"), "comes to nothing"),
        (("--algorithm.critic", "{ value_clip = 1e-13 }"), "comes to nothing"),
        (("--algorithm.critic", "{ huber_delta = 1e-13 }"), "comes to nothing"),
        (("--algorithm.entropy_coefficient", "1e-13"), "comes to nothing"),
        (("--algorithm.reward.team_weight", "1e-13"), "comes to nothing"),
        (("--algorithm.schedule", "{ name = 'sequential', kl_limit = 1e-30 }"), "comes to nothing"),
        (("--algorithm.name", "dpo", "--algorithm.objective.beta", "1e-30"), "comes to nothing"),
        (("--algorithm.sampler_correction", "{ level = 'action', cap = 1e-30 }"), "greater than or equal to 1"),
        (("--policies.actor.lora.alpha", "1e-30"), "comes to nothing"),
        (("--rewards", "[{ name = 'outcome', weight = 1e-30 }]"), "comes to nothing"),
        (
            ("--algorithm.reward.team_weight", "0.0", "--algorithm.reward.own_weight", "0.0"),
            "nothing would be rewarded",
        ),
        (("--algorithm.reward", "{ shaping = 'margin', shaping_weight = 0.0 }"), "shapes nothing"),
        (("--algorithm.reward.overlong_buffer", "9"), "9 tokens are more than the 8 that agent 'reasoner' may write"),
        (
            ("--algorithm.sampler_correction", "{ mask_low = 1.5, mask_high = 3.0 }"),
            "1 is not between mask_low and mask_high",
        ),
        (("--algorithm.sampler_correction", "{ mask_low = 0.5 }"), "mask_low does nothing without mask_high"),
        (("--algorithm.minibatches", "5"), "at most 2 tasks × 2 samples × 1 steps × 1 agents = 4 actions of a policy"),
        (("--rewards", "[{ name = 'outcome', weight = 0.0 }]"), "a term of weight 0 does nothing"),
        (("--rewards", "[{ name = 'outcome', clip = [1.0, -1.0] }]"), "the lowest and then the highest value"),
        (("--rewards", "[{ name = 'outcome', clip = [-inf, inf] }]"), "finite number"),
        (("--rewards", "[{ name = 'outcome', clip = [true, 3.0] }]"), "valid number"),
        (("--rewards", "[{ name = 'format', pattern = 'a', agents = ['actor', 'actor'] }]"), "names 'actor' twice"),
        (("--environment.params.min_terms", "true"), "'min_terms' is a number, not true"),
        (("--environment.params.min_terms", "nan"), "no finite number"),
        (
            ("--team", "{ organization = 'orchestrated', router = 'actor', views = ['all', 'all'] }"),
            "names a view twice",
        ),
        (("--models.base.context_length", "8"), "8 leaves no room for a prompt in a context of 8 tokens"),
        (("--models.base.template_options", "{ when = 2026-01-02 }"), "holds a date"),
        (("--models.base.template_options", "{ a = [{ b = [nan] }] }"), "no finite number"),
        (("--models.base.template_options", "{ a = 9223372036854775808 }"), "more than 64 bits"),
        (("--agents.actor.skills", r'["a\u0000b"]'), "must hold no empty name"),
        (("--seed", "[" * 40 + "]" * 40), "more than 32 tables and lists are inside each other"),
    ],
)
def test_nonsense_is_refused_with_the_reason(overrides: tuple[str, ...], told: str) -> None:
    assert told in complaint(*overrides)


@pytest.mark.parametrize("options", [{"a": "\ud83d"}, {"\ud83d": 1}, {"a": [{"b": ["\ud83d"]}]}])
def test_half_a_character_is_nowhere_in_what_is_passed_on(options: dict[str, Any]) -> None:
    """TOML cannot write it, and a server could not read it."""
    text = complaint(models={"base": {"path": "tiny", "template_options": options}})
    assert "holds half a character" in text
    assert text.isascii()


def test_a_wrong_value_is_shown_as_far_as_it_can_be_read() -> None:
    assert len(complaint("--seed", "x" * 100_000)) < 500


def test_minibatches_may_be_as_many_as_all_steps_and_forks_give_actions() -> None:
    often = {"environment": {"name": "tests.plugins:Flaky", "steps": 3}}
    three = ("--rollout.max_steps", "3", "--algorithm.minibatches")
    assert parse_recipe(recipe(**often), (*three, "12")).algorithm.minibatches == 12
    assert "3 steps × 1 agents = 12 actions" in complaint(*three, "13", **often)
    forked = parse_recipe(recipe(), ("--algorithm.name", "coma", "--algorithm.minibatches", "9"))
    assert forked.algorithm.minibatches == 9


def test_the_price_of_length_is_held_against_those_who_pay_it() -> None:
    """A frozen agent may write as little as it likes."""
    longer = ("--agents.actor.sampling.max_new_tokens", "64", "--algorithm.reward.overlong_buffer", "16")
    assert "agent 'reasoner' may write" in complaint(*longer)
    assert parse_recipe(recipe(), (*longer, "--policies.reasoner.train", "frozen"))


def test_absurd_sizes_come_with_their_arithmetic() -> None:
    text = complaint("--rollout.tasks_per_step", "100000", "--rollout.samples_per_task", "1000")
    assert "100,000 tasks_per_step × 1,000 samples_per_task = 100,000,000 episodes a step; at most 1,000,000" in text
    text = complaint("--rollout.tasks_per_step", "1000", "--agents.actor.sampling.max_new_tokens", "10000000")
    assert "1,000 tasks_per_step × 2 samples_per_task × 10,000,008 tokens" in text
    assert "20,000,016,000 tokens a step, which take 180 GB to record" in text


@NEEDS_LAB
def test_imagined_episodes_are_in_the_arithmetic() -> None:
    text = complaint("--rollout.tasks_per_step", "100000", "--dyna.share", "0.9", "--training.steps", "5")
    assert "(100,000 tasks_per_step + 900,000 imagined) × 2 samples_per_task = 2,000,000 episodes a step" in text


def test_a_key_in_place_of_the_name_of_its_variable_is_refused() -> None:
    table = {"url": "http://127.0.0.1:8000/v1", "api_key_variable": "sk-12 34"}
    with pytest.raises(ValueError, match="the name of an environment variable"):
        endpoint.EndpointSettings.model_validate(table)


def test_a_rate_that_lets_nothing_through_is_refused() -> None:
    with pytest.raises(ValueError, match="less than one request a day"):
        endpoint.EndpointSettings.model_validate({"url": "http://h/v1", "requests_per_minute": 1e-9})


@pytest.mark.parametrize("text", ["a\r\nb", "\r", "'''\n\"\"\"", "\\\n\\", "tab\there", "\x7f"])
def test_what_agents_are_told_is_written_down_to_the_letter(text: str, tmp_path: Any) -> None:
    table = recipe()
    table["agents"][0]["instructions"] = text
    path = tmp_path / "config.toml"
    path.write_text(to_toml(parse_recipe(table)), encoding="utf-8", newline="")
    assert load_recipe(path).agents[0].instructions == text


@pytest.mark.parametrize("text", ["x = " + "[" * 5000, "x = " + "9" * 5000, "x = " + "[" * 40 + "]" * 40])
def test_files_that_are_too_deep_or_long_are_refused(text: str, tmp_path: Any) -> None:
    path = tmp_path / "deep.toml"
    path.write_text(text)
    with pytest.raises(ValueError, match=r"is not valid TOML|tables and lists are inside each other"):
        load_recipe(path)
