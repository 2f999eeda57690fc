"""What the parts of ``marft worth`` play, told without playing it."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from marft.agents.game import Attempt
from marft.agents.team import Team
from marft.common.prompt_history import PromptHistory, PromptVersion
from marft.common.types import Action, Episode, Observation, Task, Transition
from marft.config import RunSettings
from marft.runs.state import LINEAGE_ADAPTER
from marft_lab.team_evaluation.message_ablation import assign_donors, replace_messages, run_message_ablation
from marft_lab.team_evaluation.options import ComparisonOptions
from marft_lab.team_evaluation.policy_swaps import compare_leave_one_out
from marft_lab.team_evaluation.scores import ResultRow
from marft_lab.team_evaluation.session import estimate_episodes, format_estimate
from marft_lab.team_evaluation.variants import MutedChannel, SingleAgentTeam, TeamVariant, VariantPlayer
from tests.benches import Told, told
from tests.episodes import make_action
from tests.fakes import Script, ends, game
from tests.helpers import recipe, settings
from tests.number_teams import Numbers


def run_of(policies: Mapping[str, str], answering: str, **changes: Any) -> Any:
    """What a comparison reads of a recipe. Policies in capitals are of another model.

    Args:
        policies: by role.
    """
    names = dict.fromkeys(policies.values())
    table = {
        "agents": [SimpleNamespace(role=role, policy=name, answers=role == answering) for role, name in policies.items()],
        "policies": {name: SimpleNamespace(model="big" if name.isupper() else "small") for name in names},
        "trained_policies": list(names), "seed": 3,
        "team": SimpleNamespace(writes_prompts=False, answer_only_role=lambda roles: ""),
    }  # fmt: skip
    return SimpleNamespace(**{**table, **changes})


PROGRAM = SimpleNamespace(writes_prompts=True, answer_only_role=lambda roles: "")


def bench_of(run: Any, episodes: Sequence[Episode], paraphrase: Any = "", **weights: str) -> Told:
    """A bench on which all that is played comes to the same episodes."""
    tasks = list(dict.fromkeys(episode.task.id for episode in episodes))
    return told(run, lambda _: episodes, tasks, weights=weights, options=ComparisonOptions(paraphrase=paraphrase))


def arms_of(made: Told, rows: Sequence[ResultRow]) -> dict[str, TeamVariant]:
    """What was played for rows, by their names."""
    assert made.player.played[0] is made.judge.variant
    return dict(zip([row.name for row in rows], made.player.played[1:], strict=True))


def notes_of(made: Told) -> list[str]:
    return [text for _, text in made.notes]


def chain(task: str, roles: str, sample: int = 0, reward: float = 1.0) -> Episode:
    """Each agent hears all before it."""
    actions: list[Action] = []
    for place, role in enumerate(roles):
        text = f"{role} of {task} {sample}"
        sees = tuple(action.id for action in actions)
        actions.append(make_action(role, index=place, sees=sees, text=text, task=task, sample=sample))
    transitions = (Transition(Observation("?"), reward),)
    return Episode(Task(task, "?"), "s", sample, tuple(actions), "terminated", transitions, reward > 0)


class TestExpected:
    """How much is played, by hand."""

    THREE = run_of({"planner": "p", "reasoner": "r", "actor": "a"}, "actor")
    TWO = run_of({"reasoner": "r", "actor": "a"}, "actor")
    ONE = run_of({"actor": "a"}, "actor")

    @pytest.mark.parametrize(
        ("part", "more"),
        [
            ("single", {"single actor alone": 50, "single actor alone, untuned": 50}),
            ("swap", {"swap": 30 * 5, "cross-play": 30 * 3**2 * 3}),
            ("leave-out", {"leave-out": 30 * (2 + 3)}),
            ("ablation", {"ablation": 30 * (2 + 2 + 2)}),
            ("counterfactual", {"counterfactual": 10 * 3 * 4}),
        ],
    )
    def test_three_agents_at_ten_tasks_with_three_attempts_each(self, part: str, more: dict[str, int]) -> None:
        options = ComparisonOptions(only=[part], samples=3, attempts=5, resamples=4)
        assert estimate_episodes(self.THREE, options, dict.fromkeys("pra", "step_1"), 3, 10) == {"team": 30, **more}

    def test_two_agents_at_ten_tasks_with_seven_attempts_each_beside_another_run(self) -> None:
        options = ComparisonOptions(samples=7, attempts=5, resamples=4, single=Path("other"), paraphrase="")
        assert estimate_episodes(self.TWO, options, dict.fromkeys("ra", "step_1"), 2, 10) == {
            "team": 70, "single actor alone": 70, "single actor alone, untuned": 70, "single other": 70, "swap": 70,
            "cross-play": 280, "leave-out": 70 * (1 + 2), "ablation": 140, "counterfactual": 80,
        }  # fmt: skip
        few = replace(options, samples=1)
        assert estimate_episodes(self.TWO, few, dict.fromkeys("ra", "step_1"), 1, 10)["single other"] == 50

    def test_checkpoints_that_are_one_are_not_crossed_and_policies_of_two_models_not_swapped(self) -> None:
        swapped = ComparisonOptions(only=["swap"])
        assert estimate_episodes(self.TWO, swapped, dict.fromkeys("ra", "step_1"), 1, 10) == {"team": 10, "swap": 10}
        run = run_of({"a": "a", "b": "b", "c": "C"}, "c")
        assert estimate_episodes(run, swapped, dict.fromkeys("abC", "step_1"), 1, 10) == {"team": 10, "swap": 10}

    def test_one_agent_and_a_program_have_no_messages_and_are_not_asked_alone(self) -> None:
        options = ComparisonOptions(resamples=4)
        assert estimate_episodes(self.ONE, options, {"a": "step_1"}, 3, 10) == {
            "team": 10, "leave-out": 10, "counterfactual": 40
        }  # fmt: skip
        program = run_of({"reasoner": "r", "actor": "a"}, "actor", team=PROGRAM)
        assert estimate_episodes(program, options, dict.fromkeys("ra", "step_1"), 1, 10) == {
            "team": 10, "swap": 10, "leave-out": 20, "counterfactual": 80
        }  # fmt: skip

    def test_it_is_said_in_a_sentence(self) -> None:
        assert format_estimate({"team": 1000, "swap": 500}, 1000) == (
            "about 1,500 episodes of 1,000 held-out tasks (team 1,000, swap 500); single agents': at most"
        )


class TestAblation:
    def test_each_sample_of_a_task_gets_the_messages_of_another_task_in_a_cycle_of_its_own(self) -> None:
        tasks = "uvwxyz"
        episodes = [chain(task, "ab", sample) for task in tasks for sample in (0, 1)]
        donors = assign_donors(episodes, 3)
        for sample in (0, 1):
            mine = {task: donors[task, sample] for task in tasks}
            assert all(donor.task.id != task and donor.sample == sample for task, donor in mine.items())
            assert {donor.task.id for donor in mine.values()} == {*tasks}
        cycles = [{task: assign_donors(episodes, seed)[task, sample].task.id for task in tasks} for seed, sample in (
            (3, 1), (4, 0), (3, 0)
        )]  # fmt: skip
        assert cycles[0] == cycles[1] != cycles[2]

    def test_messages_are_silenced_exchanged_and_paraphrased_for_each_that_is_heard(self) -> None:
        episodes = [chain(task, "abc") for task in "tu"]
        made = bench_of(run_of({"a": "a", "b": "b", "c": "c"}, "c"), episodes, str.upper)
        rows, shown = run_message_ablation(made.judge)
        arms = arms_of(made, rows)
        ids = [action.id for action in episodes[0].actions]
        assert [*arms] == ["silence", "shuffled", "a shuffled", "b shuffled", "a paraphrased", "b paraphrased"]
        assert arms["silence"] == replace(made.judge.variant, muted_roles=("a", "b", "c"))
        swapped = {
            ("t", 0): {ids[0]: "a of u 0", ids[1]: "b of u 0"},
            ("u", 0): {ids[0]: "a of t 0", ids[1]: "b of t 0"},
        }
        assert arms["shuffled"].messages == swapped
        for role, action in (("a", ids[0]), ("b", ids[1])):
            assert arms[f"{role} shuffled"].messages == {key: {action: some[action]} for key, some in swapped.items()}
            assert arms[f"{role} paraphrased"].messages == {
                (task, 0): {action: f"{role} of {task} 0".upper()} for task in "tu"
            }
        assert shown == [(f"{role} of {task} 0", f"{role} of {task} 0".upper()) for role in "ab" for task in "tu"]
        assert made.notes == []
        assert made.expected == {"ablation": 12}

    def test_of_one_that_is_heard_all_messages_are_its_own_and_one_task_has_no_other(self) -> None:
        run = run_of({"a": "a", "b": "b"}, "b")
        two = bench_of(run, [chain(task, "ab") for task in "tu"])
        assert [*arms_of(two, run_message_ablation(two.judge)[0])] == ["silence", "shuffled"]
        one = bench_of(run, [chain("t", "ab")])
        assert [*arms_of(one, run_message_ablation(one.judge)[0])] == ["silence"]
        assert "messages of another task need two tasks" in notes_of(one)

    def test_a_program_and_agents_that_hear_nobody_have_no_messages_to_change(self) -> None:
        policies = {"a": "a", "b": "b"}
        program = bench_of(run_of(policies, "b", team=PROGRAM), [chain("t", "ab")])
        assert run_message_ablation(program.judge) == ([], [])
        assert notes_of(program) == ["the team is a program, which passes messages on itself: they cannot be changed"]
        apart = replace(chain("t", ""), actions=(make_action("a"), make_action("b", index=1)))
        alone = bench_of(run_of(policies, "b"), [apart])
        assert run_message_ablation(alone.judge) == ([], [])
        assert notes_of(alone) == ["nobody reads anything of anybody else: there are no messages to change"]

    def test_what_has_no_other_words_stays(self) -> None:
        episode = chain("t", "ab")
        words = {("a", "b of t 0"): "no", ("b", "b of t 0"): "B"}
        assert replace_messages([episode], "a", words) == {("t", 0): {}}
        assert replace_messages([episode], "b", words) == {("t", 0): {episode.actions[1].id: "B"}}


def test_each_agent_is_left_out_that_others_read_and_each_policy_untuned_that_was_trained() -> None:
    """A planner, whom all hear; one who is never asked; a critic, who hears and is not heard; a writer, who answers."""
    planner = make_action("planner")
    critic, writer = (make_action(role, index=n, sees=(planner.id,)) for n, role in ((1, "critic"), (2, "writer")))
    last = make_action("planner", index=3, call=1, sees=(planner.id, writer.id))
    episode = replace(chain("t", ""), actions=(planner, critic, writer, last))
    policies = {"planner": "p", "idle": "i", "critic": "p", "writer": "w"}
    weights = {"p": "step_1", "i": "step_1", "w": "base"}
    made = bench_of(run_of(policies, "writer"), [episode], **weights)
    assert arms_of(made, compare_leave_one_out(made.judge)) == {
        "planner unheard": replace(made.judge.variant, muted_roles=("planner",)),
        "writer unheard": replace(made.judge.variant, muted_roles=("writer",)),
        "planner and critic untuned": replace(made.judge.variant, weights={**weights, "p": "base"}),
    }
    assert notes_of(made) == [
        "idle was never asked: nothing hangs on it",
        "critic acts, and nobody reads it; what the organization makes of it stays",
        "writer unheard: it answers all the same, or has a vote",
        "planner and critic share the policy p: untuned together",
    ]
    other = bench_of(run_of(policies, "writer"), [episode], p="base", i="base", w="step_1")
    assert [*arms_of(other, compare_leave_one_out(other.judge))] == [
        "planner unheard",
        "writer unheard",
        "writer untuned",
    ]
    assert notes_of(other) == notes_of(made)[:3], "it shares its policy with nobody"
    program = bench_of(run_of(policies, "writer", team=PROGRAM), [episode], **weights)
    assert [*arms_of(program, compare_leave_one_out(program.judge))] == ["planner and critic untuned"]
    assert notes_of(program)[:2] == [
        "idle was never asked: nothing hangs on it",
        "the team is a program, which passes messages on itself: nobody can be unheard",
    ]


class TestArms:
    def test_an_arm_is_a_team_with_what_is_changed_in_it(self) -> None:
        team = game(Script([ends()]), "a", "b").team
        assert TeamVariant({}).build_team(team) is team
        seated = TeamVariant({}, policy_swaps={"a": "b", "b": "a"}).build_team(team)
        assert [agent.policy for agent in seated.agents] == ["b", "a"]
        assert (seated.channel, seated.organization) == (team.channel, team.organization)
        unheard = TeamVariant({}, muted_roles=("a",)).build_team(team)
        assert (unheard.channel, unheard.agents) == (MutedChannel(channel=team.channel, roles=("a",)), team.agents)
        alone = TeamVariant({}, single_role="b").build_team(team)
        assert (alone.organization, alone.agents, alone.channel) == (
            SingleAgentTeam(role="b"),
            team.agents,
            team.channel,
        )

    def test_attempts_go_on_from_the_first_with_their_messages(self) -> None:
        said = {("t", 3): {"x": "one"}, ("u", 2): {"y": "two"}}
        attempts = TeamVariant({}, messages=said, samples=2, first_sample=2).build_attempts(
            [Task("t", "?"), Task("u", "?")]
        )
        assert [(one.task.id, one.stream, one.sample, one.messages) for one in attempts] == [
            ("t", "test/worth", 2, {}), ("t", "test/worth", 3, {"x": "one"}),
            ("u", "test/worth", 2, {"y": "two"}), ("u", "test/worth", 3, {}),
        ]  # fmt: skip

    def test_what_makes_it_another_arm_is_the_same_in_any_order(self) -> None:
        tasks = [Task("t", "?")]
        messages = {("t", 0): {"y": "2", "x": "1"}}
        one = TeamVariant({}, {"a": "b", "b": "a", "c": "c"}, muted_roles=("b", "a"), messages=messages)
        assert one.identity(tasks) == {
            "seats": {"a": "b", "b": "a"}, "alone": "", "unheard": ["a", "b"], "samples": 1, "first": 0,
            "messages": [["t", 0, [("x", "1"), ("y", "2")]]],
        }  # fmt: skip
        assert TeamVariant({}, samples=2, first_sample=1, single_role="a").identity(tasks) == {
            "seats": {}, "alone": "a", "unheard": [], "samples": 2, "first": 1, "messages": []
        }  # fmt: skip


class Elsewhere(Numbers):
    """An environment of one's own, with a path among its settings."""

    data: Path


class StubRollouts:
    """Plays attempts as agents who say nothing of their own, and keeps what it is asked for."""

    def __init__(self, run: RunSettings) -> None:
        self.run, self.team = run, game(Script([ends()]), "reasoner", "actor").team
        self.models: Any = SimpleNamespace(
            compute_digests=lambda: {"base": "1"}, reset_policy=lambda name: self.done.append(f"reset {name}"),
            load_policy=lambda name, folder: self.done.append(f"load {name} of {folder.parents[1].name}"),
        )  # fmt: skip
        self.done: list[str] = []
        self.told: list[dict[str, str]] = []
        self.published: list[int] = []
        self.played: list[list[tuple[str, int]]] = []
        self.streams: list[str] = []
        self.teams: list[Team] = []

    def set_prompt_versions(self, versions: Sequence[PromptVersion]) -> None:
        self.told.append({version.role: version.instructions for version in versions})

    def publish(self, version: int) -> None:
        self.published.append(version)

    def play(self, attempts: Sequence[Attempt], team: Team, on_done: Callable[[Episode], None]) -> list[Episode]:
        self.played.append([(one.task.id, one.sample) for one in attempts])
        self.streams += [one.stream for one in attempts]
        self.teams.append(team)
        found = [replace(chain(one.task.id, "", one.sample), stream=one.stream) for one in attempts]
        for episode in found:
            on_done(episode)
        return found


RUN = settings()
BASE = {"reasoner": "base", "actor": "base"}
TASKS = [Task(name, "?") for name in "tuvwx"]


class TestPlayer:
    """What is played, with which weights, and what is only read."""

    @pytest.fixture(autouse=True)
    def folders(self, tmp_path: Path) -> None:
        """A checkpoint that comes before ``base`` by name, and one that is like it but for the actor's weights."""
        self.kept = tmp_path / "worth" / "arms"
        self.paths: dict[str, Path | None] = {"base": None}
        for name, words in (("a1", "Think."), ("a2", "Reflect.")):
            self.paths[name] = path = tmp_path / name
            for policy in BASE:
                (path / "policies" / policy).mkdir(parents=True)
            files = {"policies/reasoner/w": "same", "policies/actor/w": name, "policies/actor/v": "same", "log": name}
            self.state(path, files, {"reasoner": words, "actor": f"{words} Act."})
        self.advanced = 0

    @staticmethod
    def state(path: Path, files: Mapping[str, str], told: Mapping[str, str]) -> None:
        profiles = LINEAGE_ADAPTER.dump_python(PromptHistory.start(told), mode="json")
        (path / "state.json").write_text(json.dumps({"files": files, "prompts": profiles}), encoding="utf-8")

    def advance(self, *_: object) -> None:
        self.advanced += 1

    def player(
        self, live: int = 64, run: RunSettings = RUN, tasks: Sequence[Task] = TASKS, **changes: Any
    ) -> tuple[VariantPlayer, StubRollouts]:
        rollout = run.rollout.model_copy(update={"max_concurrent_episodes": live})
        rollouts = StubRollouts(run.model_copy(update={"rollout": rollout}))
        player = VariantPlayer(rollouts, self.paths, tasks, self.kept, self.advance, **changes)  # type: ignore[arg-type]
        return player, rollouts

    @pytest.mark.parametrize(("live", "sizes"), [(5, [4, 4, 2]), (10, [10]), (1, [2] * 5)])
    def test_as_many_tasks_are_played_together_as_episodes_may_be_live(self, live: int, sizes: Sequence[int]) -> None:
        player, rollouts = self.player(live)
        found = player.play(TeamVariant(BASE, samples=2))
        assert [(one.task.id, one.sample) for one in found] == [(task, sample) for task in "tuvwx" for sample in (0, 1)]
        assert [len(played) for played in rollouts.played] == sizes
        assert [one for played in rollouts.played for one in played] == [(one.task.id, one.sample) for one in found]
        assert self.advanced == 10
        assert len([*self.kept.iterdir()]) == len(sizes)
        assert {len(path.stem) for path in self.kept.iterdir()} == {32}

    def test_what_was_played_is_read_and_played_anew_once_where_that_is_asked_for(self) -> None:
        arm = TeamVariant(BASE)
        names = [episode.name for episode in self.player()[0].play(arm)]
        player, rollouts = self.player()
        assert [episode.name for episode in player.play(arm)] == names
        assert (rollouts.played, rollouts.done, self.advanced) == ([], [], 10)
        again, rollouts = self.player(ignore_cache=True)
        assert [[episode.name for episode in again.play(arm)] for _ in range(2)] == [names] * 2
        assert (len(rollouts.played), self.advanced) == (1, 20)
        for path in self.kept.iterdir():
            path.write_bytes(b"PAR1")
        player, rollouts = self.player()
        assert [[episode.name for episode in player.play(arm)] for _ in range(2)] == [names] * 2
        assert len(rollouts.played) == 1, "what was damaged is whole again"

    def test_weights_are_put_in_place_where_others_are_and_agents_told_what_belongs_to_them(self) -> None:
        player, rollouts = self.player(tasks=TASKS[:1])
        reset = ["reset reasoner", "reset actor"]
        player.play(TeamVariant(BASE))
        assert rollouts.done == reset
        player.play(TeamVariant(BASE, single_role="actor"))
        assert rollouts.done == reset, "they are in place"
        assert rollouts.teams[-1].organization == SingleAgentTeam(role="actor")
        mixed = {"reasoner": "a2", "actor": "a1"}
        player.play(TeamVariant(mixed))
        assert rollouts.done[2:] == ["reset reasoner", "load reasoner of a2", "reset actor", "load actor of a1"]
        player.play(TeamVariant({**mixed, "actor": "base"}))
        assert rollouts.done[6:] == ["reset reasoner", "load reasoner of a2", "reset actor"]
        assert rollouts.published == [1, 2, 3]
        assert rollouts.told == [{}, {"reasoner": "Reflect.", "actor": "Think. Act."}, {"reasoner": "Reflect."}]

    def test_an_agent_that_never_learned_is_told_what_it_was_at_the_last_checkpoint_that_plays(self) -> None:
        table = recipe()
        frozen = {"reasoner": {"model": "base"}, "actor": {"model": "base", "train": "frozen"}}
        run = settings(policies=frozen, agents=table["agents"])
        player, rollouts = self.player(run=run)
        player.play(TeamVariant({"reasoner": "a1"}))
        assert rollouts.told == [{"reasoner": "Think.", "actor": "Think. Act."}]
        both = {"reasoner": {"model": "base"}, "other": {"model": "base"}, "actor": frozen["actor"]}
        third = {**table["agents"][0], "role": "other", "policy": "other"}
        player, rollouts = self.player(run=settings(policies=both, agents=[third, *table["agents"]]))
        for path in filter(None, self.paths.values()):
            (path / "policies" / "other").mkdir()
        player.play(TeamVariant({"other": "base", "reasoner": "a1"}))
        assert rollouts.told == [{"reasoner": "Think.", "actor": "Think. Act."}]
        player.play(TeamVariant({"other": "a2", "reasoner": "a1"}))
        assert rollouts.told[1:] == [{"reasoner": "Think.", "actor": "Reflect. Act."}]

    def test_where_nothing_was_trained_agents_are_told_nothing_and_are_in_place_once(self) -> None:
        frozen = {name: {"model": "base", "train": "frozen"} for name in BASE}
        run = settings(policies=frozen)
        player, rollouts = self.player(run=run)
        player.play(TeamVariant({}))
        player.play(TeamVariant({}, single_role="actor"))
        assert (rollouts.done, rollouts.told, rollouts.published) == ([], [{}], [1])

    def played(self, arm: TeamVariant, **changes: Any) -> bool:
        """Whether a player that comes later plays an arm of which the one that was begun with is kept."""
        player, rollouts = self.player(**changes)
        player.play(arm)
        return bool(rollouts.played)

    def test_an_arm_is_another_where_anything_is_that_its_episodes_depend_on(self) -> None:
        mixed = {"reasoner": "a1", "actor": "a1"}
        arm = TeamVariant(mixed, policy_swaps={"reasoner": "actor", "actor": "reasoner"})
        turned = TeamVariant(dict(reversed([*mixed.items()])), policy_swaps=dict(reversed([*arm.policy_swaps.items()])))
        assert self.played(arm)
        assert not self.played(arm)
        assert not self.played(turned), "in another order it is the same"
        assert not self.played(arm, run=RUN.model_copy(update={"name": "another"}))
        assert self.played(arm, run=RUN.model_copy(update={"seed": 7}))
        assert self.played(replace(arm, weights={**mixed, "actor": "a2"}))
        assert self.played(replace(arm, weights={**mixed, "actor": "base"}))
        assert self.played(arm, tasks=[replace(TASKS[0], prompt="!")])
        path = self.paths["a1"]
        assert path is not None
        files = {"log": "other", "policies/actor/v": "same", "policies/actor/w": "a1", "policies/reasoner/w": "same"}
        self.state(path, files, {"reasoner": "Think.", "actor": "Think. Act."})
        assert not self.played(arm), "its policies' files are the same"
        self.state(path, files, {"reasoner": "Think.", "actor": "Now act."})
        assert self.played(arm)
        self.state(path, {**files, "policies/actor/w": "new"}, {"reasoner": "Think.", "actor": "Now act."})
        assert self.played(arm)

    def test_settings_that_json_has_no_word_for_tell_arms_apart_too(self) -> None:
        first, second = (
            settings(environment={"name": "tests.marft_lab.test_worth_parts:Elsewhere", "data": data}) for data in "xy"
        )
        assert [self.played(TeamVariant(BASE), run=run) for run in (first, first, second)] == [True, False, True]

    def test_other_models_are_played_anew(self) -> None:
        arm = TeamVariant(BASE)
        assert self.played(arm)
        rollouts = StubRollouts(RUN)
        rollouts.models.compute_digests = lambda: {"base": "2"}
        VariantPlayer(rollouts, self.paths, TASKS, self.kept, self.advance).play(arm)  # type: ignore[arg-type]
        assert rollouts.played

    def test_actions_of_the_tasks_that_have_an_episode_are_sampled_again(self) -> None:
        player, rollouts = self.player(live=12)
        arm = TeamVariant(BASE, samples=3, messages={("t", 0): {"x": "y"}})
        episodes = [
            replace(one, actions=tuple(replace(action, policy={"r": "reasoner", "a": "actor"}[action.agent]) for action in one.actions))
            for one in (chain(task, "ra") for task in "tvwx")
        ]  # fmt: skip
        found = player.play_forks(arm, episodes, 3)
        ids = [action.id for action in episodes[0].actions]
        streams = [f"test/worth/fork/{at}/{number}" for at in ids for number in range(3)]
        assert [len(played) for played in rollouts.played] == [6, 12, 6], "two tasks are live at a time"
        assert rollouts.streams == streams * 4
        assert [(one.task.id, one.sample) for one in found] == [(task, 0) for task in "tvwx" for _ in range(6)]
        assert self.advanced == 24
        player.play_forks(arm, episodes, 3)
        assert len(rollouts.played) == 3
        player.play_forks(arm, episodes, 2)
        assert len(rollouts.played) > 3

    def test_a_team_of_its_own_is_played_once_with_the_weights_that_are_named(self) -> None:
        player, rollouts = self.player()
        team = replace(rollouts.team, organization=SingleAgentTeam(role="actor"))
        attempts = [Attempt(task, "elsewhere") for task in TASKS[:2]]
        weights = {"reasoner": "a1", "actor": "base"}
        for _ in range(2):
            found = player.play_team(weights, attempts, team, ["x"])
            assert [episode.name for episode in found] == ["elsewhere t #0", "elsewhere u #0"]
        assert rollouts.teams == [team]
        assert rollouts.done == ["reset reasoner", "load reasoner of a1", "reset actor"]
        assert self.advanced == 4
        player.play_team(weights, attempts, team, ["y"])
        assert len(rollouts.teams) == 2
