"""Environments of Gymnasium and PettingZoo: what they show is told, what they allow is offered, what they pay is paid."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

pytest.importorskip("gymnasium", reason="needs the gymnasium package")
pytest.importorskip("pettingzoo", reason="needs the pettingzoo package")

import numpy as np
from gymnasium import spaces
from hypothesis import given
from hypothesis import strategies as st
from pydantic import ValidationError

from marft.common.types import JointAction, Observation, Step
from marft.config import parse_recipe
from marft.envs.scripted_policy import PolicyInput
from marft_envs.gyms.gymnasium_game import Gymnasium
from marft_envs.gyms.pettingzoo_game import PettingZoo
from marft_envs.gyms.texts import enumerate_actions, format_value, parse_choice, strip_colors
from marft_lab.scripted_team import ScriptedTeam
from tests.episodes import make_action

WALK, NIM, MEETING = "tests.gym_games:Walk", "tests.gym_games:Nim", "tests.gym_games:Meeting"
TWO = {"north": "player_1", "south": "player_2"}


def begun(environment: Any, index: int = 0, seed: int = 0) -> tuple[Any, Observation]:
    session = environment.start(environment.tasks("train")[index], seed)
    return session, asyncio.run(session.reset())


def acted(session: Any, **texts: str) -> Step:
    actions = tuple(make_action(agent=role, text=text) for role, text in texts.items())
    return asyncio.run(session.step(JointAction(None, actions)))


class TestGymnasium:
    @pytest.mark.parametrize(
        ("game", "words"),
        [
            ("FrozenLake-v1", "<on red>S</>FFF"),
            ("Taxi-v4", "<on yellow>"),
            ("CliffWalking-v1", "C  C"),
            ("Blackjack-v1", ", "),
        ],
    )
    def test_toy_text_is_told_and_played_to_its_end(self, game: str, words: str) -> None:
        environment = Gymnasium(game=game, max_steps=40)
        session, shown = begun(environment)
        texts = [shown.text]
        step = None
        while step is None or not (step.terminated or step.truncated):
            step = acted(session, solver=shown.options["solver"][len(texts) % len(shown.options["solver"])])
            shown = step.observation
            texts.append(shown.text)
        asyncio.run(session.close())
        assert any(words in text for text in texts)
        assert len(texts) <= 41

    def test_what_is_possible_is_offered_and_what_is_earned_is_scaled(self) -> None:
        environment = Gymnasium(
            game=WALK, action_names=("left", "right"), reward_scale=0.1, rendering="tests.gym_games:told"
        )
        session, shown = begun(environment)
        at, total = int(shown.text.split()[3].rstrip(".")), 0.0
        for left in range(at, 0, -1):
            assert shown.text.startswith(f"You are at {left}.\nActions: left")
            step = acted(session, solver="I go left.")
            total += step.reward
            shown = step.observation
        assert (step.terminated, step.success) == (True, True)
        assert total == pytest.approx(0.1 * (10 - at))
        assert step.info["measures"] == {"mistakes": 0, "earned": pytest.approx(10 - at)}

    def test_a_mask_takes_away_what_is_not_possible(self) -> None:
        session, shown = begun(Gymnasium(game=WALK, kwargs={"size": 2}, action_names=("left", "right")))
        assert shown.options == {"solver": ("left",)}
        step = acted(session, solver="right")
        assert "That was no action" in step.observation.text
        assert (step.reward, step.terminated) == (0.0, False)
        assert step.info["measures"]["mistakes"] == 1

    def test_an_episode_is_cut_off_after_max_steps_also_of_mistakes(self) -> None:
        session, _ = begun(Gymnasium(game=WALK, max_steps=2))
        assert not acted(session, solver="?").truncated
        step = acted(session)
        assert (step.truncated, step.terminated, step.success) == (True, False, None)
        assert step.observation.text  # the state that a critic values

    @pytest.mark.parametrize(("limit", "solved"), [(1.0, True), (10.5, False)])
    def test_a_threshold_of_what_is_earned_says_whether_it_is_solved(self, limit: float, solved: bool) -> None:
        session, _ = begun(Gymnasium(game=WALK, kwargs={"size": 2}, success_threshold=limit))
        step = acted(session, solver="0")
        assert step.success is solved

    def test_seeds_of_splits_are_their_own_and_variants_come_in_turn(self) -> None:
        environment = Gymnasium(
            game=WALK, train_tasks=4, held_out_tasks=3, variants=({"size": 5}, {"size": 7}), kwargs={"actions": "bits"}
        )
        seeds = {split: {t.data["seed"] for t in environment.tasks(split)} for split in ("train", "validation", "test")}  # type: ignore[arg-type]
        assert len(set.union(*seeds.values())) == 10
        assert [t.data["kwargs"] for t in environment.tasks("train")[:2]] == [
            {"actions": "bits", "size": 5},
            {"actions": "bits", "size": 7},
        ]

    def test_split_by_content_no_beginning_is_in_two_splits_or_comes_twice(self) -> None:
        environment = Gymnasium(game=WALK, kwargs={"size": 200}, split_by="content", train_tasks=20, held_out_tasks=4)
        shown = {}
        for split in ("train", "validation", "test"):
            tasks = environment.tasks(split)  # type: ignore[arg-type]
            shown[split] = [environment.first_observation(t.data["seed"], t.data["kwargs"]) for t in tasks]
        texts = [text for split in shown.values() for text in split]
        assert [len(split) for split in shown.values()] == [20, 4, 4]
        assert len(set(texts)) == 28

    def test_numbers_of_a_space_begin_where_it_says(self) -> None:
        session, shown = begun(Gymnasium(game=WALK, kwargs={"actions": "shifted", "size": 2}))
        assert shown.options == {"solver": ("-1", "0")}
        assert acted(session, solver="-1").terminated

    def test_a_game_is_let_go_of(self) -> None:
        session, _ = begun(Gymnasium(game=WALK))
        closed = []
        session.env.close = lambda: closed.append(True)
        asyncio.run(session.close())
        assert closed == [True]

    def test_the_same_seed_begins_alike(self) -> None:
        environment = Gymnasium(game=WALK)
        assert begun(environment, 3)[1] == begun(environment, 3)[1]
        assert len({begun(environment, index)[1].text for index in range(8)}) > 1

    @pytest.mark.parametrize(
        ("table", "words"),
        [
            ({"game": "NoSuchGame-v0"}, "cannot be made"),
            ({"game": "tests.gym_games:Missing"}, "cannot import"),
            ({"game": WALK, "kwargs": {"actions": "box"}}, "agents choose from few"),
            ({"game": WALK, "kwargs": {"actions": "large"}}, "1,000 actions are possible at once, and at most 256"),
            ({"game": WALK, "action_names": ("left",)}, "1 names for 2 actions"),
            ({"game": WALK, "kwargs": {"wings": 2}}, "cannot be made with"),
        ],
    )
    def test_what_cannot_be_played_says_what_to_do(self, table: dict[str, Any], words: str) -> None:
        with pytest.raises(ValueError, match=words):
            begun(Gymnasium(**table))


def test_a_package_that_is_not_there_is_named_with_what_to_do(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("marft_envs.gyms.seeded.find_spec", lambda _: None)
    for environment in (Gymnasium(game="FrozenLake-v1"), PettingZoo(game=NIM)):
        with pytest.raises(ValueError, match=r"pip install .*marft.*\[(gymnasium|pettingzoo)\]"):
            environment.tasks("train")


class TestPettingZoo:
    def test_sides_take_turns_see_their_own_and_earn_their_own(self) -> None:
        session, shown = begun(PettingZoo(game=NIM, game_agent_by_role=TWO))
        assert shown.turn == ("north",)
        assert shown.views == {"north": "5\nActions: 0, 1"}
        shown = acted(session, north="1").observation
        assert (shown.turn, shown.views) == (("south",), {"south": "3\nActions: 0, 1"})
        acted(session, south="1")
        step = acted(session, north="0")
        assert (step.terminated, step.truncated) == (True, False)
        assert step.agent_rewards == {"north": 1.0, "south": -1.0}
        assert step.reward == 0.0

    @pytest.mark.parametrize(("team", "reward"), [("sum", 0.0), ("mean", 0.0), ("north", 2.0), ("south", -2.0)])
    def test_the_teams_reward_is_what_the_recipe_says(self, team: str, reward: float) -> None:
        session, _ = begun(
            PettingZoo(game=NIM, kwargs={"heap": 1}, game_agent_by_role=TWO, team_reward=team, reward_scale=2.0)
        )
        step = acted(session, north="0")
        assert step.reward == reward
        assert step.agent_rewards == {"north": 2.0, "south": -2.0}

    def test_a_mask_holds_and_no_action_changes_nothing(self) -> None:
        session, shown = begun(PettingZoo(game=NIM, kwargs={"heap": 1}, game_agent_by_role=TWO))
        assert shown.options == {"north": ("0",)}
        step = acted(session, north="1")
        assert "north gave no action" in step.observation.text
        assert (step.observation.turn, step.reward, step.agent_rewards) == (("north",), 0.0, {})

    def test_a_game_is_over_once_nobody_of_the_team_plays_however_long_others_go_on(self) -> None:
        seats = {"clerk": "cyd"}
        session, _ = begun(
            PettingZoo(game=MEETING, kwargs={"rounds": 10**9}, game_agent_by_role=seats, random_others=True), seed=1
        )
        step = acted(session, clerk="0")
        assert (step.terminated, step.truncated, step.reward) == (True, False, 0.0)
        assert session.game.active_agents == ("ann", "bob")

    def test_others_play_at_random_under_the_seed(self) -> None:
        environment = PettingZoo(
            game=NIM,
            game_agent_by_role={"north": "player_1"},
            random_others=True,
            team_reward="north",
            kwargs={"heap": 30},
        )

        def game(seed: int) -> list[str]:
            session, shown = begun(environment, seed=seed)
            texts = []
            while True:
                texts.append(shown.views["north"])
                step = acted(session, north="0")
                if step.terminated:
                    assert set(step.agent_rewards) == {"north"}
                    return texts
                shown = step.observation

        assert game(1) == game(1)
        assert any(game(1) != game(seed) for seed in range(2, 6))

    def test_who_is_out_is_not_asked_and_who_stays_goes_on(self) -> None:
        session, shown = begun(PettingZoo(game=MEETING, success_threshold=1.0))
        assert shown.turn == ("ann", "bob", "cyd")
        shown = acted(session, ann="0", bob="1", cyd="2").observation
        assert shown.turn == ("ann", "bob")
        step = acted(session, ann="2", bob="2")
        assert (step.terminated, step.reward, step.success) == (True, 1.0, True)

    def test_a_game_is_cut_off_after_max_steps(self) -> None:
        session, _ = begun(PettingZoo(game=MEETING, max_steps=1))
        step = acted(session, ann="0", bob="1", cyd="2")
        assert (step.terminated, step.truncated) == (False, True)

    def test_a_game_that_cuts_itself_off_is_cut_off(self) -> None:
        session, _ = begun(PettingZoo(game=MEETING, kwargs={"rounds": 1}))
        step = acted(session, ann="0", bob="0", cyd="1")
        assert (step.terminated, step.truncated) == (False, True)

    def test_what_others_do_pays_the_team_as_well(self) -> None:
        environment = PettingZoo(
            game=NIM, game_agent_by_role={"north": "player_1"}, random_others=True, kwargs={"heap": 2}
        )
        session, _ = begun(environment)
        step = acted(session, north="0")  # the other one takes the last
        assert (step.terminated, step.agent_rewards) == (True, {"north": -1.0})

    def test_one_without_an_action_holds_up_a_round_of_all(self) -> None:
        session, _ = begun(PettingZoo(game=MEETING))
        step = acted(session, ann="0", bob="soon", cyd="2")
        assert step.observation.turn == ("ann", "bob", "cyd")
        assert step.observation.text == "bob gave no action that is possible, so nothing happened."
        assert step.info["measures"]["mistakes"] == 1

    def test_the_board_in_a_terminal_is_shown_to_all(self) -> None:
        _, shown = begun(PettingZoo(game=NIM, game_agent_by_role=TWO, rendering="ansi"))
        assert (shown.text, shown.views["north"]) == ("|||||", "You are player_1.\nActions: 0, 1")

    def test_a_mask_that_allows_nothing_is_an_error_and_no_reward(self) -> None:
        with pytest.raises(ValueError, match="allows no action at all"):
            begun(PettingZoo(game=NIM, kwargs={"empty_mask": True}, game_agent_by_role=TWO))

    @pytest.mark.parametrize(
        ("table", "words"),
        [
            ({"game": "tests.no_such_module"}, "cannot import"),
            ({"game": NIM, "game_agent_by_role": {"north": "player_9"}}, "did you mean"),
            ({"game": MEETING, "rendering": "ansi"}, "cannot be made with"),
        ],
    )
    def test_what_cannot_be_played_says_what_to_do(self, table: dict[str, Any], words: str) -> None:
        with pytest.raises(ValueError, match=words):
            begun(PettingZoo(**table))

    def test_seats_are_held_to_the_team(self) -> None:
        found = list(
            PettingZoo(game=NIM, game_agent_by_role={"nort": "player_1"}, team_reward="most").problems(
                ["north", "player_1"]
            )
        )
        assert len(found) == 2
        assert "no agent is called 'nort'; did you mean 'north'?" in found[0]
        twice = list(PettingZoo(game=NIM, game_agent_by_role={"north": "player_1"}).problems(["north", "player_1"]))
        assert "two roles play 'player_1'" in twice[0]
        with pytest.raises(ValidationError, match="name whom the roles play"):
            PettingZoo(game=NIM, random_others=True)


class TestWords:
    @given(st.integers(1, 6), st.integers(-3, 3))
    def test_every_action_of_a_space_has_a_text_of_its_own_and_lies_in_it(self, n: int, start: int) -> None:
        for space in (spaces.Discrete(n, start=start), spaces.MultiDiscrete([n, 2]), spaces.MultiBinary(min(n, 3))):
            acts = enumerate_actions(space)
            assert len(acts.values) == len(set(acts.values))
            assert all(space.contains(value) for value in acts.values.values())

    def test_a_mask_of_parts_is_one_for_each(self) -> None:
        acts = enumerate_actions(spaces.MultiDiscrete([2, 3]))
        assert acts.allowed_actions((np.array([1, 0]), np.array([0, 1, 1]))) == ("0 1", "0 2")
        with pytest.raises(ValueError, match="does not fit"):
            acts.allowed_actions((np.array([1, 0]),))
        with pytest.raises(ValueError, match="does not fit"):
            enumerate_actions(spaces.Discrete(3)).allowed_actions(np.array([1, 0]))

    @pytest.mark.parametrize(
        ("text", "option"),
        [
            ("left", "left"),
            ("LEFT!", "left"),
            ("go up left", "up left"),
            ("leftover", ""),
            ("", ""),
            ("left or right", ""),
            ("left, no: right", "right"),
            ("right, not left", "right"),
            ("do not go left", ""),
            (r"\boxed{left}, as right is a wall", "left"),
            ("The answer is left. Up left is a wall.", "left"),
        ],
    )
    def test_what_is_chosen_is_the_option_that_is_named_last(self, text: str, option: str) -> None:
        assert parse_choice(text, ["left", "right", "up left"]) == option

    def test_values_of_any_space_are_told(self) -> None:
        assert format_value(np.array([1.23456, -2.0]), ("speed", "turn")) == "speed: 1.23\nturn: -2"
        assert format_value(np.zeros((2, 2), np.int64)) == "0, 0\n0, 0"
        assert format_value((3, np.array([True, False]))) == "3, yes, no"
        assert format_value({"board": np.zeros((2, 2), int), "name": "x"}) == "board:\n0, 0\n0, 0\nname: x"
        with pytest.raises(ValueError, match="no text that anybody reads"):
            format_value(np.zeros((84, 84)))
        with pytest.raises(ValueError, match="cannot be told in words"):
            format_value(object())

    def test_colours_are_words(self) -> None:
        assert strip_colors("\x1b[91mx\x1b[0m") == "<red>x</>"
        assert strip_colors("\x1b[34;1mR\x1b[0m|\x1b[42m_\x1b[0m") == "<blue>R</>|<on green>_</>"


def test_sides_of_a_recipe_play_by_turns_and_choose() -> None:
    run = parse_recipe({
        "name": "nim", "models": {"base": {"path": "tiny"}}, "policies": {"a": {"model": "base"}},
        "agents": [{"role": role, "policy": "a", "answers": True} for role in TWO],
        "team": {"organization": "turns"},
        "environment": {"name": "pettingzoo", "game": NIM, "game_agent_by_role": TWO, "train_tasks": 3},
    })  # fmt: skip

    def script(cue: PolicyInput) -> str:
        assert cue.options
        return cue.random.choice(cue.options)

    with ScriptedTeam(run, script) as team:
        episodes = list(team.play(run.environment.tasks("train")))  # type: ignore[attr-defined]
    assert [episode.status for episode in episodes] == ["terminated"] * 3, [episode.error for episode in episodes]
    assert {action.agent for episode in episodes for action in episode.actions} == set(TWO)
    assert all(action.choice for episode in episodes for action in episode.actions)
