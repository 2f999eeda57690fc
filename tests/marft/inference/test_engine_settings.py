"""What ``[engine]`` changes of the rest of a recipe."""

from __future__ import annotations

import pytest

from marft.config import parse_recipe, to_toml
from marft.config.recipe_checks import warn_idle_cluster, warn_idle_settings
from marft.inference.engine_settings import Vllm
from tests.helpers import recipe, settings
from tests.satellites import NEEDS_LAB

VLLM = ("--engine.kind", "vllm")


@pytest.mark.parametrize(
    ("overrides", "level"),
    [
        ((), "none"),
        (VLLM, "geometric"),
        ((*VLLM, "--algorithm.level", "token"), "token"),
        ((*VLLM, "--algorithm.sampler_correction.level", "none"), "none"),
        ((*VLLM, "--algorithm.sampler_correction.level", "action"), "action"),
    ],
)
def test_what_samples_elsewhere_is_corrected_unless_the_recipe_says_otherwise(
    overrides: tuple[str, ...], level: str
) -> None:
    assert settings("tiny", "runs", *overrides).algorithm.sampler_correction.level == level


def test_a_recipe_that_is_written_out_says_how_it_is_corrected() -> None:
    import tomllib

    written = tomllib.loads(to_toml(parse_recipe(recipe("tiny", "runs"), VLLM)))
    assert written["algorithm"]["sampler_correction"]["level"] == "geometric"
    assert parse_recipe(written).algorithm.sampler_correction.level == "geometric"


def test_grammars_are_refused_where_the_engine_holds_none(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Vllm, "supports_grammars", False)
    with pytest.raises(ValueError, match="cannot hold what it samples to a grammar"):
        settings("tiny", "runs", *VLLM, "--agents.actor.sampling.grammar", "start: /[0-9]+/")


@NEEDS_LAB
def test_a_cluster_that_no_process_of_a_run_is_started_in_is_named() -> None:
    """A run that was given an address, and nothing to start there, was trained here without a word."""
    address = ("--cluster.address", "auto")
    (said,) = warn_idle_cluster(settings("tiny", "runs", *address))
    assert said.startswith("[cluster]: the cluster is not joined")
    assert said in list(warn_idle_settings(settings("tiny", "runs", *address)))
    for started in ((*VLLM,), ("--rollout.workers", "2"), ("--training.ranks", "2")):
        assert not list(warn_idle_cluster(settings("tiny", "runs", *address, *started)))
    assert not list(warn_idle_cluster(settings("tiny", "runs")))
