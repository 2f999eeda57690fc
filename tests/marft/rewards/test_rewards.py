"""Composed rewards: named terms with weights and clips, each kept apart."""

from __future__ import annotations

import asyncio
import math
import time
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, ClassVar, cast

import pytest

from marft.agents.game import Attempt
from marft.agents.loop_threads import LoopThread, LoopThreadPool
from marft.common.errors import EpisodeFailedError
from marft.common.types import Action, Episode, Observation, StepInfo, Task, ToolCall, Transition
from marft.config import parse_recipe
from marft.config.interfaces.reward import RewardTerm, TermReward
from marft.evaluation.episode_metrics import episode_metrics
from marft.rewards.reward_manager import RewardManager
from marft.rewards.terms import (
    Format,
    Function,
    MessageTokens,
    Outcome,
    Progress,
    StepCost,
    ToolErrors,
    Trajectory,
    TrajectoryScore,
    unique_names,
)
from marft.rollout.local_runner import LocalRolloutRunner
from marft.runs.episode_files import read_episodes
from marft.runs.run_folder import RunFolder
from marft.trainer.train import train
from tests.episodes import make_action
from tests.helpers import recipe, settings


def episode(*rewards: float, success: bool | None = True) -> Episode:
    actions = []
    for step in range(len(rewards)):
        actions.append(make_action("a", step=step, index=2 * step, text=f"plan {step}"))
        seen = (f"{step}/a/0",)
        actions.append(
            replace(make_action("b", step=step, index=2 * step + 1, sees=seen, text="<x>"), message_tokens=(3 + step,))
        )
    transitions = tuple(Transition(Observation("o"), reward, {"b": 0.5}) for reward in rewards)
    return Episode(Task("t", "o"), "s", 0, tuple(actions), "terminated", transitions, success=success)


def compose(of: Episode, terms: Sequence[RewardTerm], timeout: float = 5.0) -> Episode:
    return asyncio.run(RewardManager(terms, ("a", "b"), LoopThreadPool(), timeout)(of))


def composed(*terms: RewardTerm, of: Episode | None = None) -> list[tuple[float, Mapping[str, float]]]:
    made = compose(of or episode(0.25, 0.0, 1.0), terms)
    assert made.status == "terminated", made.error
    return [(t.reward, t.agent_rewards) for t in made.transitions]


def test_each_term_is_what_it_says() -> None:
    assert composed(Outcome()) == [(0.25, {"b": 0.5}), (0.0, {"b": 0.5}), (1.0, {"b": 0.5})]
    assert composed(Trajectory()) == [(0.0, {}), (0.0, {}), (1.0, {})]
    assert composed(Trajectory(), of=episode(1.0, success=False)) == [(0.0, {})]
    assert composed(Progress()) == [(0.25, {}), (0.0, {}), (0.75, {})]
    assert composed(StepCost(weight=0.1)) == [(-0.1, {})] * 3
    assert composed(MessageTokens(weight=0.5)) == [(0.0, {"a": -1.5}), (0.0, {"a": -2.0}), (0.0, {"a": -2.5})]
    assert composed(Format(pattern="<x>")) == [(0.0, {"a": 0.0, "b": 1.0})] * 3
    assert composed(Format(pattern="plan", agents=("a",))) == [(0.0, {"a": 1.0})] * 3


def test_terms_add_up_after_clip_and_weight_and_are_kept_apart() -> None:
    made = compose(episode(0.25, 5.0), (Outcome(weight=2.0, clip=(0.0, 1.0)), StepCost(weight=0.5)))
    assert [t.reward for t in made.transitions] == [0.0, 1.5]
    assert made.transitions[1].agent_rewards == {"b": 1.0}
    metrics = episode_metrics([made], ("a", "b"), lambda _: 0)
    assert metrics["agents/b/own_reward"] == 2.0
    assert (metrics["reward"], sum(v for k, v in metrics.items() if k.startswith("rewards/"))) == (1.5, 1.5)


def step(reward: float = 0.0, progress: float | None = None) -> Transition:
    return Transition(Observation("o"), reward, declared=StepInfo(progress=progress))


def of_steps(*transitions: Transition, actions: Sequence[Action] = ()) -> Episode:
    return replace(episode(), transitions=transitions, actions=tuple(actions))


def test_progress_is_what_a_step_adds_to_the_best_before_it() -> None:
    declared = of_steps(step(9.0, 0.25), step(9.0, None), step(9.0, 0.125), step(9.0, 0.5))
    assert [reward for reward, _ in composed(Progress(), of=declared)] == [0.25, 0.0, 0.0, 0.25]
    paid = of_steps(step(-1.0), step(0.5), step(0.25), step(2.0))
    assert [reward for reward, _ in composed(Progress(), of=paid)] == [0.0, 0.5, 0.0, 1.5]


def test_the_score_of_a_trajectory_is_the_mean_of_what_is_declared_and_fails_without() -> None:
    made = composed(TrajectoryScore(), of=of_steps(step(9.0, 0.25), step(9.0), step(9.0, 0.5)))
    assert [reward for reward, _ in made] == [0.0, 0.0, 0.375]
    failed = compose(episode(1.0), (TrajectoryScore(),))
    assert (failed.status, "does not declare how near its goal" in failed.error) == ("failed", True)
    unknown = compose(episode(1.0, success=None), (Trajectory(),))
    assert (unknown.status, "does not say whether the task was solved" in unknown.error) == ("failed", True)


def test_failed_calls_are_paid_by_who_made_them_in_their_step() -> None:
    right, wrong = ToolCall("add", "{}"), ToolCall("add", "{}", error=True)
    actions = [
        replace(make_action(role, step=number, index=index), calls=calls)
        for index, (role, number, calls) in enumerate([
            ("a", 0, (wrong, right, wrong)), ("b", 0, (right,)), ("a", 0, (wrong,)), ("b", 1, (wrong,)), ("b", 2, (wrong,)),
        ])
    ]  # fmt: skip
    made = composed(ToolErrors(weight=0.5), of=of_steps(step(), step(), actions=actions))
    assert made == [(0.0, {"a": -1.5}), (0.0, {"b": -0.5})]


def test_tokens_that_several_read_are_paid_for_each_time_and_none_beyond_the_last_step() -> None:
    told = make_action("a", index=0)
    actions = [told] + [
        replace(make_action("b", step=number, index=index + 1, call=index, sees=(told.id,)), message_tokens=(tokens,))
        for index, (number, tokens) in enumerate([(0, 3), (0, 4), (1, 5)])
    ]
    assert composed(MessageTokens(), of=of_steps(step(), actions=actions)) == [(0.0, {"a": -7.0})]


def test_formats_are_counted_for_each_action_and_none_beyond_the_last_step() -> None:
    actions = [
        make_action("a", step=number, index=index, call=index, text=text)
        for index, (number, text) in enumerate([(0, "<x>"), (0, "<x>"), (0, "y"), (1, "<x>")])
    ]
    for agents in ((), ("a",)):
        assert composed(Format(pattern="<x>", agents=agents), of=of_steps(step(), actions=actions)) == [
            (0.0, {"a": 2.0})
        ]


def test_terms_count_once_unclipped_unless_they_say_otherwise_and_only_some_shape() -> None:
    assert (TermReward().team, TermReward().agents) == (0.0, {})
    terms = [
        Outcome(),
        Trajectory(),
        Progress(),
        TrajectoryScore(),
        StepCost(),
        ToolErrors(),
        MessageTokens(),
        Format(pattern="x"),
    ]
    assert [term.shaping_only for term in terms] == [False] * 4 + [True] * 4
    for term in terms:
        assert (term.weight, term.clip, term.own_timeout, term.label, dict(term.counts())) == (1.0, None, False, "", {})
        assert term.open(["a"]) is term
        assert term.apply_weight(-7.0) == -7.0
    assert [Outcome(weight=2.0, clip=(-1.0, 3.0)).apply_weight(value) for value in (-2.0, 0.5, 4.0)] == [-2.0, 1.0, 6.0]
    assert Function(call="tests.marft.rewards.test_rewards:by_agent").label == "by_agent"


@pytest.mark.parametrize(("settings", "why"), [
    ({"weight": 0.0}, "a term of weight 0 does nothing"), ({"clip": (1.0, 1.0)}, "must be the lowest and then the highest"),
    ({"clip": (1.0, -1.0)}, "must be the lowest and then the highest"),
])  # fmt: skip
def test_weights_of_zero_and_clips_without_a_range_are_refused(settings: dict[str, Any], why: str) -> None:
    with pytest.raises(ValueError, match=why):
        Outcome(**settings)
    assert Outcome(weight=1.0, clip=None).apply_weight(5.0) == 5.0


def brevity(episode: Episode) -> float:
    return -float(len(episode.actions))


def by_agent(episode: Episode) -> dict[str, float]:
    return {"a": 1.0}


def broken(episode: Episode) -> float:
    raise KeyError("boom")


def nan(episode: Episode) -> float:
    return math.nan


def test_functions_of_ones_own() -> None:
    assert composed(Function(call="tests.marft.rewards.test_rewards:brevity")) == [(0.0, {}), (0.0, {}), (-6.0, {})]
    assert composed(Function(call="tests.marft.rewards.test_rewards:by_agent", weight=3.0))[-1] == (0.0, {"a": 3.0})


def words(episode: Episode) -> dict[str, str]:
    return {"a": "much"}


def nothing(episode: Episode) -> None:
    """No ``return``."""


def text(episode: Episode) -> str:
    return "1.0"


def stranger(episode: Episode) -> dict[str, float]:
    return {"bb": 1.0}


@pytest.mark.parametrize(
    ("name", "reason"),
    [
        ("stranger", "rewards an agent 'bb' that is not in the team; did you mean 'b'? (test_rewards.py:"),
        ("broken", "raised KeyError: 'boom'"),
        ("nan", "gave the team a reward of nan; must be finite"),
        ("words", "gave a a reward of 'much'; must be finite"),
        ("nothing", "gave the team a reward of None; must be finite, and a number (test_rewards.py:"),
        ("text", "gave the team a reward of '1.0'; must be finite, and a number (test_rewards.py:"),
    ],
)
def test_a_term_that_fails_fails_the_episode_and_is_never_a_reward_of_zero(name: str, reason: str) -> None:
    made = compose(episode(1.0), (Function(call=f"tests.marft.rewards.test_rewards:{name}"),))
    assert (made.status, made.is_scored) == ("failed", False)
    assert reason in made.error


@pytest.mark.slow
def test_an_expression_that_searches_for_ever_fails_its_episode_and_holds_up_nobody() -> None:
    async def beside() -> tuple[Episode, int]:
        of = episode(1.0)
        of = replace(of, actions=(replace(of.actions[0], text="a" * 60 + "!"),))
        composing = asyncio.create_task(
            RewardManager((Format(pattern="(a|a)+$"),), ("a", "b"), LoopThreadPool(), 10.0)(of)
        )
        turns = 0
        while not composing.done():
            await asyncio.sleep(0.02)
            turns += 1
        return await composing, turns

    made, turns = asyncio.run(beside())
    assert (made.status, made.is_scored) == ("timed_out", False)
    assert "'(a|a)+$' searched a text for over 2 s" in made.error
    assert turns > 20


class Short(RewardTerm):
    def score(self, episode: Episode) -> list[TermReward]:
        return [TermReward(1.0)]


class Awaited(RewardTerm):
    async def score(self, episode: Episode) -> list[TermReward]:
        await asyncio.sleep(0.01)
        return [TermReward(2.0) for _ in episode.transitions]


def test_a_term_gives_one_entry_a_step_and_may_be_awaited() -> None:
    made = compose(episode(1.0, 1.0), (Short(),))
    assert made.status == "failed"
    assert made.error.startswith("reward term 'Short' gave 1 entries for 2 steps (test_rewards.py:")
    assert composed(Awaited()) == [(2.0, {})] * 3


class Counted(RewardTerm):
    """Awaited where it is asked, on the loop."""

    own_timeout: ClassVar[bool] = True
    asked: ClassVar[list[str]] = []

    async def score(self, episode: Episode) -> list[TermReward]:
        self.asked.append(episode.task.id)
        if episode.task.id == "broken":
            raise KeyError("boom")
        if episode.task.id == "late":
            raise EpisodeFailedError("timed_out", "the judge is late")
        return [TermReward(2.0) for _ in episode.transitions]


def test_a_term_with_a_timeout_of_its_own_is_asked_once_and_fails_under_its_name() -> None:
    Counted.asked.clear()
    assert composed(StepCost(), Counted(weight=2.0)) == [(3.0, {})] * 3
    assert composed(Counted()) == [(2.0, {})] * 3
    assert Counted.asked == ["t", "t"]
    made = [compose(replace(episode(1.0), task=Task(name, "o")), (Counted(),)) for name in ("broken", "late")]
    assert [one.status for one in made] == ["failed", "timed_out"]
    assert made[0].error.startswith("reward term 'Counted' raised KeyError: 'boom'")
    assert made[1].error == "the judge is late"


class Vandal(RewardTerm):
    def score(self, episode: Episode) -> list[TermReward]:
        (transition,), (action, *_) = episode.transitions, episode.actions
        for table in (
            transition.agent_rewards,
            transition.terms,
            transition.observation.views,
            transition.observation.options,
        ):
            cast("dict[str, object]", table).update({"b": 99.0})
        for array in (action.prompt, action.tokens, action.marks, action.log_probs):
            with pytest.raises(ValueError, match="read-only"):
                array[0] = 9
        return [TermReward(1.0)]


def test_what_a_term_writes_into_its_episode_is_seen_by_nobody_else() -> None:
    seen = Observation("o", views={"a": "x"}, options={"a": ("y",)})
    of = of_steps(Transition(seen, 0.5, {"b": 0.5}, {"earlier": 1.0}), actions=episode(1.0).actions)
    assert composed(Vandal(), Outcome(), of=of) == [(1.5, {"b": 0.5})]
    (transition,) = of.transitions
    assert (transition.agent_rewards, transition.terms) == ({"b": 0.5}, {"earlier": 1.0})
    assert (seen.views, seen.options) == ({"a": "x"}, {"a": ("y",)})
    assert of.actions[0].tokens.flags.writeable


class Odd(RewardTerm):
    given: Any

    def score(self, episode: Episode) -> Any:
        return self.given


@pytest.mark.parametrize(("given", "why"), [
    (None, "reward term 'Odd' gave NoneType, not entries for 1 steps"), ({0: TermReward()}, "gave dict, not entries for 1 steps"),
    ([1.0], "gave a float, not marft.config.interfaces.reward.TermReward"), ([TermReward(math.inf)], "gave the team a reward of inf"), ([], "gave 0 entries for 1 steps"),
])  # fmt: skip
def test_what_is_no_reward_for_each_step_fails_the_episode_with_the_reason(given: Any, why: str) -> None:
    made = compose(episode(1.0), (Odd(given=given),))
    assert made.status == "failed"
    assert why in made.error


def test_rewards_add_up_over_terms_and_fail_the_episode_where_their_sum_is_not_finite() -> None:
    assert composed(Outcome(), Outcome(weight=2.0), of=episode(1.0)) == [(3.0, {"b": 1.5})]
    for given in (TermReward(1e308), TermReward(agents={"a": 1e308})):
        made = compose(episode(1.0), (Odd(given=[given]), Odd(given=[given])))
        assert made.status == "failed"
        assert "the reward terms add up to {" in made.error
        assert "which is not finite" in made.error


def test_threads_serve_again_unless_their_term_failed() -> None:
    threads = CountedThreads()

    async def all_of_them() -> list[str]:
        composer = RewardManager((StepCost(), Outcome()), ("a", "b"), threads, 5.0)
        failing = RewardManager((Odd(given=None),), ("a", "b"), threads, 5.0)
        return [(await one(episode(1.0))).status for one in (composer, failing, composer, composer)]

    assert asyncio.run(all_of_them()) == ["terminated", "failed", "terminated", "terminated"]
    assert threads.released == [False, True, False, False]
    threads.close()


class CountedThreads(LoopThreadPool):
    def __init__(self) -> None:
        super().__init__()
        self.released = list[bool]()

    async def release(self, thread: LoopThread, failed: bool) -> None:
        self.released.append(failed)
        await super().release(thread, failed)


def test_two_functions_are_told_apart_and_one_kind_is_not_named_like_another_term() -> None:
    here = "tests.marft.rewards.test_rewards"
    one, two = Function(call=f"{here}:brevity"), Function(call=f"{here}:by_agent")
    assert unique_names([one, two]) == ["Function_brevity", "Function_by_agent"]
    assert unique_names([one, StepCost()]) == ["Function", "StepCost"]
    assert unique_names([StepCost(), StepCost(), StepCost()]) == ["StepCost", "StepCost_2", "StepCost_3"]
    assert unique_names([]) == []


def pays_one(episode: Episode) -> float:
    return 1.0


def pays_ten(episode: Episode) -> dict[str, float]:
    return {"a": 10.0}


def test_terms_of_one_kind_are_logged_apart_under_names_that_say_which() -> None:
    here = "tests.marft.rewards.test_rewards"
    terms = [
        Function(call=f"{here}:pays_one"), Function(call=f"{here}:pays_ten"), Function(call=f"{here}:pays_one", weight=2.0),
        Format(pattern="plan"), Format(pattern="<x>"), StepCost(), Function(call=f"{here}:raises"),
    ]  # fmt: skip
    assert compose(episode(1.0), terms).error.startswith("reward term 'Function_raises' raised")
    made = compose(episode(1.0), terms[:-1])
    assert made.transitions[0].terms == {
        "Function_pays_one": 1.0, "Function_pays_ten": 0.0, "Function_pays_ten/a": 10.0, "Function_pays_one_2": 2.0,
        "Format": 0.0, "Format/a": 1.0, "Format/b": 0.0, "Format_2": 0.0, "Format_2/a": 0.0, "Format_2/b": 1.0,
        "StepCost": -1.0,
    }  # fmt: skip
    assert list(compose(episode(1.0), terms[:1]).transitions[0].terms) == ["Function"]


def raises(episode: Episode) -> float:
    raise RuntimeError(episode.task.id)


def hangs(episode: Episode) -> float:
    if episode.task.id == "flaky/1":
        time.sleep(3.0)
    return 1.0


def test_a_term_that_hangs_loses_its_own_episode_alone_and_holds_up_nobody(tmp_path: Path) -> None:
    terms = "[{ name = 'function', call = 'tests.marft.rewards.test_rewards:hangs' }]"
    environment = {"name": "tests.plugins:Flaky"}
    run = settings("tiny", tmp_path, "--rewards", terms, "--rollout.timeout_seconds", "0.3", environment=environment)
    done: list[Episode] = []
    with LocalRolloutRunner(run) as rollouts:
        rollouts.publish(0)
        attempts = [Attempt(task, "s") for task in run.environment.tasks("test")[:3]]  # type: ignore[attr-defined]
        played = rollouts.play(attempts, on_done=done.append)
        assert rollouts.game.threads.blocked_threads == 1
    assert [episode.status for episode in played] == ["terminated", "timed_out", "terminated"]
    assert played[1].error == "reward term 'function' took over 0.3 s"
    assert played[0].transitions[0].terms == {"function": 1.0}
    assert done[-1] is played[1]  # as soon as each is composed
    assert {id(episode) for episode in done} == {id(episode) for episode in played}


def test_without_terms_and_without_a_score_nothing_changes() -> None:
    whole, failed = episode(1.0), replace(episode(1.0), status="failed")
    assert compose(whole, ()) is whole
    assert compose(failed, (StepCost(),)) is failed


def test_a_run_with_composed_rewards(tmp_path: Path) -> None:
    terms = "[{ name = 'outcome' }, { name = 'step_cost', weight = 0.25 }, { name = 'format', pattern = 'zebra' }]"
    run = settings("tiny", tmp_path, "--rewards", terms)
    folder = RunFolder.create(run)
    train(run, folder)
    metrics = folder.read_metrics()[0]
    assert metrics["rewards/step_cost"] == -0.25
    assert metrics["agents/actor/rewards/format"] == 0.0
    assert metrics["reward"] == pytest.approx(metrics["rewards/outcome"] - 0.25)
    recorded = read_episodes(folder.episodes / "step_000001.parquet")[0].transitions[0]
    assert recorded.terms["step_cost"] == -0.25


@pytest.mark.parametrize(
    ("terms", "complaint"),
    [
        ("[{ name = 'outcom' }]", "did you mean 'outcome'?"),
        ("[{ name = 'format', pattern = '(' }]", "no regular expression"),
        ("[{ name = 'function', call = 'tests.marft.rewards.test_rewards:gone' }]", "cannot import"),
        ("[{ name = 'format', pattern = 'x', agents = ['actr'] }]", "did you mean 'actor'?"),
        ("[{ name = 'outcome', wieght = 2.0 }]", "did you mean 'weight'?"),
    ],
)
def test_terms_that_cannot_work_are_refused(terms: Any, complaint: str) -> None:
    with pytest.raises(ValueError, match="recipe:") as caught:
        parse_recipe(recipe(), ["--rewards", terms])
    assert complaint in str(caught.value)
