"""Who is who in spans: what of a recipe, or of what stands in its place, says how an agent's model is called."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from marft_serve.tracing.batches import resource_of
from marft_serve.tracing.cast import Cast
from marft_serve.tracing.episode import Tracer

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
    seat = Cast.of(TABLE).seat(role, "of its policy")
    assert (seat.profile.role, seat.model, seat.provider) == (role, model, provider)


def test_what_a_recipe_says_of_agents_is_kept_and_what_it_does_not_say_is_left_out() -> None:
    seats = Cast.of(TABLE).seats
    assert (seats["a"].profile.instructions, seats["a"].profile.guidance) == ("Plan.", "Briefly.")
    assert [role for role, seat in seats.items() if seat.profile.answers] == ["c"]
    assert Cast.of({"agents": "none", "team": 3}) == Cast()


def test_programs_ask_in_their_own_words_and_organizations_do_not() -> None:
    assert Cast.of({**TABLE, "team": {"organization": "program"}}).own_words
    assert not Cast.of({**TABLE, "team": {"organization": "chain"}}).own_words


def test_a_run_goes_by_the_name_it_is_given_else_by_its_recipes(tmp_path: Path) -> None:
    assert (Cast.of(TABLE).name, Cast.of(TABLE, "given").name) == ("demo", "given")
    config = tmp_path / "config.toml"
    config.write_text('name = "mine"')
    assert (Cast.read(config).name, Cast.read(config, "given").name) == ("mine", "given")
    for content in (b"name = ", b"\xff", b"a = " + b"[" * 100_000):
        config.write_bytes(content)
        assert Cast.read(config, "given") == Cast("given")
    assert Cast.read(tmp_path / "nothing", "given") == Cast("given")


def test_all_spans_of_a_run_say_which_one_it_is() -> None:
    said = resource_of(Tracer("identity", Cast("demo")))
    assert (said["service.name"], said["marft.run"], said["marft.run.identity"]) == ("marft", "demo", "identity")
