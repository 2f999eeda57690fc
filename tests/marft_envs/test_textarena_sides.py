"""Who plays whom, and who is paid: sides that all learn, opponents that do not, advisors, games played together."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Mapping
from pathlib import Path
from random import Random
from typing import Any, ClassVar

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from marft.common.types import Episode, JointAction, Observation, Task, Transition
from marft.config.interfaces.credit import CreditInputs, Values
from marft.config.interfaces.reward import RewardTerm, TermReward
from marft.config.load import parse_recipe
from marft.runs.episode_files import read_episodes
from marft.runs.run_folder import RunFolder
from marft.trainer.credit.agent_group import AgentGroup
from marft.trainer.credit.gae import GAE
from marft.trainer.credit.grpo import GRPO
from marft.trainer.credit.monte_carlo import MonteCarlo
from marft.trainer.credit.rae import RAE
from marft.trainer.train import train
from tests import references_credit as slow
from tests.episodes import make_action
from tests.playing_games import acted, environment, first_option, match

TWO_ADVISED = {"seats": [["planner", "mover"], ["rival"]]}


class Brisk(RewardTerm):
    """Somebody's own: the same for all, the fewer steps, the more."""

    same_for_team: ClassVar[bool] = True

    def score(self, episode: Episode) -> list[TermReward]:
        return [TermReward(1 / len(episode.transitions)) for _ in episode.transitions]


def at_random(seed: int) -> Any:
    random = Random(seed)
    return lambda role, shown: random.choice(shown.options[role])


class TestWhoIsPaid:
    @given(game=st.sampled_from(["kuhn", "nim"]), seed=st.integers(0, 2**32), number=st.integers(0, 4))
    def test_sides_that_all_learn_earn_opposite_amounts_and_the_team_nothing(
        self, game: str, seed: int, number: int
    ) -> None:
        env = environment(game=game, train_tasks=5, held_out_tasks=1, **TWO_ADVISED)
        _, last = match(env, env.tasks("train")[number], at_random(seed))
        own = last.agent_rewards
        assert last.reward == 0.0
        assert own["planner"] == own["mover"] == -own["rival"] != 0.0
        assert last.success is None

    @pytest.mark.parametrize("opponent", ["frozen", "pool"])
    def test_against_opponents_that_do_not_learn_the_team_earns_what_its_side_does(self, opponent: str) -> None:
        one, all_learn = environment(game="nim", opponent=opponent), environment(game="nim")
        for number, task in enumerate(one.tasks("train")):
            _, last = match(one, task, at_random(number))
            _, same = match(all_learn, all_learn.tasks("train")[number], at_random(number))
            assert last.agent_rewards == {}
            assert last.reward == same.agent_rewards["north"]
            assert last.success == (last.reward > 0)

    def test_moves_of_opponents_that_do_not_learn_are_not_measured(self) -> None:
        """The opponent's are all illegal, the learner's are not."""
        env = environment(game="nim", opponent="frozen")

        def move(role: str, shown: Observation) -> str:
            return first_option(role, shown) if role == "north" else "nothing"

        for task in env.tasks("train"):
            _, last = match(env, task, move)
            assert last.info["measures"].get("illegal_moves", 0.0) == 0.0

    def test_a_game_played_together_pays_the_team_once(self) -> None:
        env = environment(game="hints")
        _, last = match(env, env.tasks("train")[0], first_option)
        assert last.agent_rewards == {}
        assert (last.reward > 0) == last.success

    def test_side_by_side_the_seat_that_begins_alternates_and_belongs_to_the_task(self) -> None:
        env = environment(game="kuhn", train_tasks=200)
        begun = {
            task.id: match(env, task, first_option, seed)[0][0].turn for task in env.tasks("train") for seed in (1, 2)
        }
        assert {task.id: (task.data["begins"],) for task in env.tasks("train")} == begun
        share = sum(role == ("north",) for role in begun.values()) / len(begun)
        assert 0.35 < share < 0.65
        fixed = environment(game="kuhn", first_move="first")
        assert {task.data["begins"] for task in fixed.tasks("train")} == {"north"}

    def test_an_advisor_sees_what_its_side_sees_and_makes_no_move(self) -> None:
        env = environment(game="nim", **TWO_ADVISED)
        task = next(task for task in env.tasks("train") if task.data["begins"] == "planner and mover")

        async def go() -> None:
            session = env.start(task, 0)
            shown = await session.reset()
            assert shown.turn == ("planner", "mover")
            assert shown.for_role("planner") == shown.for_role("mover")
            assert set(shown.options) == {"mover"}
            one, two = shown.options["mover"][:2]
            step = await session.step(JointAction(actions=(acted("planner", two), acted("mover", one))))
            assert f"They {one}." in step.observation.for_role("rival")

        asyncio.run(go())

    def test_matches_against_chance_are_the_same_under_the_same_seed(self) -> None:
        env = environment(game="nim", opponent="random", seats=[["north"]])
        task = env.tasks("train")[0]
        played = [str(match(env, task, first_option, seed)) for seed in (1, 1, 2, 3, 4)]
        assert played[0] == played[1]
        assert len(set(played)) > 1

    def test_a_perfect_opponent_wins_what_can_be_won(self) -> None:
        env = environment(game="nim", opponent="perfect", seats=[["north"]], train_tasks=30)
        for task in env.tasks("train"):
            heaps = task.data["start"]["heaps"]
            if (heaps[0] ^ heaps[1] ^ heaps[2] != 0) == (task.data["begins"] != "north"):
                assert match(env, task, first_option)[1].reward == -1.0

    def test_a_match_that_goes_on_too_long_is_a_draw(self) -> None:
        env = environment(game="nim", max_turns=1)
        task = next(task for task in env.tasks("train") if min(task.data["start"]["heaps"]) > 1)
        shown, last = match(env, task, first_option)
        assert len(shown) == 1
        assert last.terminated
        assert last.agent_rewards == {"north": 0.0, "south": 0.0}

    def test_players_who_are_said_to_play_together_and_earn_differently_are_refused(self) -> None:
        from marft_envs.textarena.environment import SideAssignment, TextArenaSession
        from marft_envs.textarena.games import Nim

        seating = SideAssignment((("a",), ("b",)), (0, 1), cooperative=True)
        session = TextArenaSession(Nim().start_match({"heaps": [1]}), seating, Random(0))

        async def go() -> None:
            await session.reset()
            with pytest.raises(ValueError, match="set cooperative = false"):
                await session.step(JointAction(actions=(acted("a", "take 1 from A"),)))

        asyncio.run(go())


class TestWhatIsRefused:
    @pytest.mark.parametrize(
        ("table", "says"),
        [
            ({"seats": [["a", "b"], ["b"]]}, "'b' has two seats"),
            ({"seats": [["a"], []]}, "a side has no role"),
            ({"seats": [["a"]]}, "nim is for 2 players, and 1 would play"),
            ({"seats": [["a"]], "opponent": "pool"}, "'pool' is a side of its own"),
            ({"opponent": "random"}, "seats has one side alone"),
            ({"params": {"heeps": 2}}, "did you mean 'heaps'"),
            ({"game": "kunh"}, "did you mean 'kuhn'"),
            ({"game": "hints", "opponent": "frozen"}, "played together"),
        ],
    )
    def test_settings_that_mean_nothing(self, table: dict[str, Any], says: str) -> None:
        with pytest.raises(ValueError, match=says):
            environment(**{"game": "nim", **table})

    @pytest.mark.parametrize(
        ("changes", "says"),
        [
            ({"algorithm": {"name": "grpo"}}, "'grpo' judges agents by what all of them earn together"),
            ({"algorithm": {"name": "marft"}}, "nobody would learn"),
            ({"algorithm": {"name": "rloo"}}, "nobody would learn"),
            ({"algorithm": {"name": "rae", "credit": {"name": "monte-carlo"}}}, "nobody would learn"),
            ({"algorithm": {"name": "rae", "reward": {"own_weight": 0.0}}}, "nothing of what a side earns"),
            ({"algorithm": {"name": "rae", "reward": {"shaping": "margin"}}}, "those are opponents"),
            ({"rewards": [{"name": "outcome"}, {"name": "trajectory"}]}, "one of them has lost it"),
            ({"team": {"organization": "chain"}}, "although it is not their turn"),
            ({"team": {"organization": "turns", "visible": "last"}}, "opponents would read"),
            ({"environment": {"name": "textarena", "opponent": "frozen"}}, r"set policies.player.train = 'frozen'"),
            ({"environment": {"name": "textarena", "seats": [["north"], ["east"]]}}, "no agent is called 'east'"),
            ({"environment": {"name": "textarena", "game": "nim", "opponent": "random", "seats": [["north"]]}}, "'south' has no seat"),
        ],
    )  # fmt: skip
    def test_recipes_in_which_a_side_would_learn_from_what_the_other_earned(
        self, changes: dict[str, Any], says: str
    ) -> None:
        with pytest.raises(ValueError, match=says):
            parse_recipe(recipe(**changes))

    @pytest.mark.parametrize(
        "term", ["step_cost", "marft.rewards.terms:StepCost", "tests.marft_envs.test_textarena_sides:Brisk"]
    )
    def test_a_term_given_by_import_path_that_pays_both_sides_alike_is_refused_like_the_built_in_one(
        self, term: str
    ) -> None:
        with pytest.raises(ValueError, match=f"'{term}' pays both sides of a game alike"):
            parse_recipe(recipe(rewards=[{"name": term}]))

    def test_a_term_that_declares_nothing_may_pay_each_side_its_own(self) -> None:
        assert parse_recipe(recipe(rewards=[{"name": "tests.beside:Given"}])).rewards

    @pytest.mark.parametrize(
        "algorithm",
        [
            {"name": "rae"},
            {"name": "agent-grpo"},
            {"name": "ippo"},
            {"name": "marft", "credit": {"name": "gae", "successor": "agent"}},
            {"name": "grpo", "credit": {"name": "agent-group"}},
        ],
    )  # fmt: skip
    def test_credits_that_judge_each_by_itself_are_taken(self, algorithm: dict[str, Any]) -> None:
        assert parse_recipe(recipe(algorithm=algorithm)).environment.opposing_sides == (("north",), ("south",))

    def test_against_a_frozen_opponent_every_credit_is(self) -> None:
        table = recipe(algorithm={"name": "grpo"}, environment={"name": "textarena", "opponent": "frozen"})
        table["policies"]["other"] = {"model": "base", "train": "frozen"}
        table["agents"][1]["policy"] = "other"
        assert parse_recipe(table).environment.opponent_roles == ("south",)


@pytest.mark.slow
def test_one_policy_learns_from_both_seats_against_itself(tmp_path: Path) -> None:
    table = recipe(output=str(tmp_path), device="cpu", threads=1, sinks=[], training={"steps": 2})
    table["rollout"] = {"tasks_per_step": 4, "samples_per_task": 2}
    table["algorithm"] = {"name": "rae", "credit": {"name": "rae", "group_by": ["begins"]}}
    run, folder = parse_recipe(table), RunFolder(tmp_path / "sides")
    state = train(run, folder)
    assert all(key.split(" ", 1)[1] in ('["north"]', '["south"]') for key in state_of(folder)["component_state"]), state
    assert len(state_of(folder)["component_state"]) == 4  # two sides, each in two seats
    for row in folder.read_metrics():
        assert row["reward"] == 0.0
        assert row["agents/north/own_reward"] == -row["agents/south/own_reward"]
        assert row["environment/sound_moves"] <= 1.0
    for episode in read_episodes(folder.episodes / "step_000001.parquet"):
        assert {action.policy for action in episode.actions} == {"player"}


def state_of(folder: RunFolder) -> dict[str, Any]:
    return json.loads((folder.checkpoints / "step_000002" / "state.json").read_text())  # type: ignore[no-any-return]


def recipe(**changes: Any) -> dict[str, Any]:
    agent = {"policy": "player", "answers": True, "instructions": "Win.", "sampling": {"max_new_tokens": 8}}
    return {
        "name": "sides",
        "models": {"base": {"path": "tiny"}},
        "policies": {"player": {"model": "base"}},
        "agents": [{"role": "north", **agent}, {"role": "south", **agent}],
        "team": {"organization": "turns"},
        "environment": {"name": "textarena"},
        "algorithm": {"name": "rae"},
        **changes,
    }


@st.composite
def matches(draw: st.DrawFn) -> list[Episode]:
    """Attempts at a few tasks by two sides that move by turns; what one wins the other loses."""
    episodes = []
    for number in range(draw(st.integers(1, 3))):
        begins = draw(st.sampled_from(["north", "south"]))
        order = ("north", "south") if begins == "north" else ("south", "north")
        task = Task(f"t{number}", "…", {"begins": begins})
        for sample in range(draw(st.integers(1, 4))):
            steps = draw(st.integers(1, 5))
            actions = tuple(
                make_action(order[n % 2], step=n, index=n, task=task.id, sample=sample) for n in range(steps)
            )
            won = draw(st.sampled_from([-1.0, -0.5, 0.0, 0.5, 1.0]))
            paid = [Transition(Observation("…"), 0.0)] * (steps - 1)
            last = Transition(Observation("…"), 0.0, {"north": won, "south": -won})
            episodes.append(Episode(task, "train/0", sample, actions, "terminated", (*paid, last)))
    return episodes


def numbers(rows: Any) -> list[float]:
    return [float(x) for row in rows for x in row]


class TestCredit:
    @given(first=matches(), second=matches())
    def test_a_baseline_for_each_side_and_seat_equals_the_slow_reference(
        self, first: list[Episode], second: list[Episode]
    ) -> None:
        credit = RAE(decay=0.5, group_by=("begins",))
        before = credit.assign(CreditInputs(first, "action"))
        resumed = RAE(decay=0.5, group_by=("begins",))
        resumed.load_state_dict(credit.state_dict())
        mine = numbers(before.advantages), numbers(resumed.assign(CreditInputs(second, "action")).advantages)
        for found, expected in zip(mine, slow.rae([first, second], 0.5, ("begins",)), strict=True):
            assert found == pytest.approx([x for of_episode in expected for x in of_episode])

    @given(batch=matches())
    def test_groups_never_compare_the_two_seats(self, batch: list[Episode]) -> None:
        credits = AgentGroup().assign(CreditInputs(batch, "action"))
        assert numbers(credits.advantages) == pytest.approx(
            [x for of_episode in slow.agent_group(batch, True) for x in of_episode]
        )
        actions = [action for episode in batch for action in episode.actions]
        assert all(group.endswith(action.agent) for group, action in zip(credits.groups, actions, strict=True))

    @given(batch=matches())
    def test_along_its_own_chain_a_side_is_judged_by_its_own_result(self, batch: list[Episode]) -> None:
        zeros = Values([np.zeros(1) for episode in batch for _ in episode.actions])
        whole = {"gamma_step": 1.0, "gamma_agent": 1.0, "successor": "agent"}
        found = numbers(MonteCarlo(**whole).assign(CreditInputs(batch, "action")).advantages)
        again = GAE(**whole, lambda_step=1.0, lambda_agent=1.0).assign(CreditInputs(batch, "action", zeros))
        expected = [slow.agent_return(episode, action.agent) for episode in batch for action in episode.actions]
        assert found == pytest.approx(expected)
        assert numbers(again.advantages) == pytest.approx(expected)

    @given(batch=matches())
    def test_a_return_of_the_whole_team_tells_nobody_anything(self, batch: list[Episode]) -> None:
        """Why such credits are refused: what is won and lost adds up to nothing."""
        assert set(numbers(GRPO().assign(CreditInputs(batch, "action")).advantages)) <= {0.0}

    @given(batch=matches(), decay=st.floats(0, 0.9))
    def test_what_one_side_gains_by_a_result_the_other_loses(self, batch: list[Episode], decay: float) -> None:
        advantages = iter(numbers(RAE(decay=decay).assign(CreditInputs(batch, "action")).advantages))
        for episode in batch:
            mine: Mapping[str, set[float]] = {"north": set(), "south": set()}
            for action in episode.actions:
                mine[action.agent].add(next(advantages))
            if all(mine.values()):
                assert sum(mine["north"]) == pytest.approx(-sum(mine["south"]))
