"""Who is who in spans: what of a recipe, or of what stands in its place, says how an agent's model is called."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from marft_serve.tracing.episode_spans import Tracer, build_resource
from marft_serve.tracing.team_metadata import TeamMetadata

TABLE: dict[str, Any] = {
    "name": "demo",
    "models": {
        "here": {"path": "/models/Small"}, "hub": {"path": "org/Small"},
        "far": {"path": "gpt", "endpoint": {"url": "http://localhost:1"}},
    },
    "policies": {
        "trained": {"model": "here"}, "named": {"model": "hub"}, "still": {"model": "here", "train": "frozen"},
        "remote": {"model": "far"}, "lost": {"model": "nowhere"},
    },
    "agents": [
        {"role": "a", "policy": "trained", "instructions": "Plan.", "guidance": "Briefly."}, {"role": "b", "policy": "named"},
        {"role": "c", "policy": "still", "answers": True}, {"role": "d", "policy": "remote", "answers": "yes"},
        {"role": "e", "policy": "lost"}, 7,
    ],
}  # fmt: skip


@pytest.mark.parametrize(
    ("role", "model", "provider"),
    [
        ("a", "Small:trained", "marft"), ("b", "org/Small:named", "marft"), ("c", "Small", "marft"), ("d", "gpt", "openai"),
        ("e", "lost:lost", "marft"), ("stranger", "of its policy", "marft"),
    ],
)  # fmt: skip
def test_a_model_goes_by_its_name_and_its_policys_where_it_is_trained(role: str, model: str, provider: str) -> None:
    seat = TeamMetadata.from_table(TABLE).get_agent(role, "of its policy")
    assert (seat.profile.role, seat.model, seat.provider) == (role, model, provider)


def test_what_a_recipe_says_of_agents_is_kept_and_what_it_does_not_say_is_left_out() -> None:
    seats = TeamMetadata.from_table(TABLE).agents
    assert (seats["a"].profile.instructions, seats["a"].profile.guidance) == ("Plan.", "Briefly.")
    assert [role for role, seat in seats.items() if seat.profile.answers] == ["c"]
    assert TeamMetadata.from_table({"agents": "none", "team": 3}) == TeamMetadata()


def test_programs_ask_in_their_own_words_and_organizations_do_not() -> None:
    assert TeamMetadata.from_table({**TABLE, "team": {"organization": "program"}}).writes_prompts
    assert not TeamMetadata.from_table({**TABLE, "team": {"organization": "chain"}}).writes_prompts


def test_a_run_goes_by_the_name_it_is_given_else_by_its_recipes(tmp_path: Path) -> None:
    assert (TeamMetadata.from_table(TABLE).name, TeamMetadata.from_table(TABLE, "given").name) == ("demo", "given")
    config = tmp_path / "config.toml"
    config.write_text('name = "mine"')
    assert (TeamMetadata.from_file(config).name, TeamMetadata.from_file(config, "given").name) == ("mine", "given")
    for content in (b"name = ", b"\xff", b"a = " + b"[" * 100_000):
        config.write_bytes(content)
        assert TeamMetadata.from_file(config, "given") == TeamMetadata("given")
    assert TeamMetadata.from_file(tmp_path / "nothing", "given") == TeamMetadata("given")


def test_all_spans_of_a_run_say_which_one_it_is() -> None:
    said = build_resource(Tracer("identity", TeamMetadata("demo")))
    assert (said["service.name"], said["marft.run"], said["marft.run.identity"]) == ("marft", "demo", "identity")
