"""The organization ``flow``, and what makes its network better: what is said to whom, what is kept and what refused."""

from __future__ import annotations

import asyncio
import math
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from marft.agents.game import Attempt
from marft.agents.play import play
from marft.common.seeds import generator
from marft.common.types import Episode, JointAction, Observation, Step, Task
from marft.config import parse_recipe
from marft.config.load import to_toml
from marft.evaluation.intervals import gain_bounds, paired_difference
from marft.runs.episode_files import read_episodes, write_episodes
from marft.runs.export.recipe import describe_foreign_code
from marft.runs.run_folder import RunFolder
from marft.trainer.train import train
from marft_lab.cli.flows import grow, show
from marft_lab.flows.edge_policy import match_context
from marft_lab.flows.growth import GrowthOptions
from marft_lab.flows.network import SINK, SOURCE, Change, FlowNetwork, Node, read_network, write_network
from marft_lab.flows.organization import Flow, episode_paths, router_options, sample_step_path, with_instructions
from marft_lab.flows.tuning import (
    FlowEvaluator,
    GainEstimate,
    PathLearningOptions,
    RewordingOptions,
    _collect_failures,
    _path_returns,
    bound_gain,
    estimate_gain,
    learn_paths,
    reword_nodes,
    skip_nodes,
)
from marft_lab.prompt_optimization.prompts import AttemptTranscript
from tests.episodes import make_action
from tests.fakes import FakeEngine, Script, game
from tests.flow_teams import Solves, board, contexts, failing, flow, network, watched
from tests.helpers import recipe
from tests.sources import ROOT

BENCHMARKS = ROOT / "benchmarks"
LINE = network("source a 1", "a b 1", "b c 1", "c d 1", "d sink 1")
FORK = network("source a 3", "a b 2", "a c 1", "b sink 2", "c sink 1")
TASKS = [Task(f"t{number}", "Add up.") for number in range(300)]


def played(organization: Flow, *roles: str, steps: int = 1, chosen: str = "c") -> tuple[Episode, FakeEngine]:
    engine = FakeEngine(lambda key, prompt: chosen if key.agent == "r" else f"{key.agent} says {key.call}")
    acts = [lambda joint, last=n == steps - 1: Step(Observation("on"), 1.0, terminated=last) for n in range(steps)]
    whole = game(Script(acts), *roles, engine=engine, organization=organization)
    episode = asyncio.run(play(whole, Attempt(Task("t0", "begin"), "train/0")))
    assert episode.status == "terminated", episode.error
    return episode, engine


def two_kinds(tmp_path: Path, solves: Solves) -> tuple[FlowEvaluator, FlowNetwork]:
    """A board of 30 tasks that z and m act in, and 10 of another kind, in which a acts."""
    adds, letter = (context.name for context in contexts("Add up.", "Write a letter."))
    found = network("source z 9", "z m 9", "m sink 9", "source a 9", "a sink 9", contexts=contexts(adds, letter))
    edges = [replace(e, by_context={letter if "a" in (e.start, e.end) else adds: 9}) for e in found.edges]
    found = replace(found, edges=tuple(edges))
    tasks = [*TASKS[:30], *(replace(task, prompt=letter) for task in TASKS[30:40])]
    return board(tmp_path, found, solves, tasks), found


class TestOrganization:
    def test_nodes_are_played_by_their_roles_which_are_told_their_instructions(self, tmp_path: Path) -> None:
        episode, engine = played(flow(tmp_path, FORK, temperature=0.0), "a", "b", "c")
        assert [(action.agent, [*action.sees]) for action in episode.actions] == [("a", []), ("b", ["0/a/0"])]
        prompts = {key.agent: text for key, text in engine.asked}
        assert "You do a." in prompts["a"]
        assert "You do b." in prompts["b"]
        assert "You do a." not in prompts["b"]

    @pytest.mark.parametrize(("visible", "seen"), [("all", ["a", "b", "c"]), ("last", ["c"]), ("none", [])])
    def test_what_is_seen_of_earlier_nodes(self, visible: str, seen: list[str], tmp_path: Path) -> None:
        episode, _ = played(flow(tmp_path, LINE, visible=visible), "a", "b", "c", "d")
        assert [name.split("/")[1] for name in episode.actions[-1].sees] == seen

    @pytest.mark.parametrize("router", ["", "r"])
    @pytest.mark.parametrize(("most", "last"), [(2, "b"), (4, "d"), (9, "d")])
    def test_the_last_node_of_a_path_answers(self, router: str, most: int, last: str, tmp_path: Path) -> None:
        answers = list[str]()

        def act(joint: JointAction) -> Step:
            answers.append(joint.answer.text if joint.answer else "")
            return Step(Observation("end"), 1.0, terminated=True)

        organization = flow(tmp_path, LINE, router=router, max_nodes=most)
        whole = game(Script([act]), "r", "d", "c", "b", "a", organization=organization)
        episode = asyncio.run(play(whole, Attempt(Task("t0", "begin"), "train/0")))
        assert answers == [f"{last} says 0"]
        assert [action.agent for action in episode.actions] == ["a", "b", "c", "d"][:most]

    def test_an_agent_is_told_a_nodes_instructions_after_what_it_is_shown(self) -> None:
        shown = Observation("on", views={"b": "For b."})
        assert with_instructions(shown, "a", "Do it.").views == {"a": "Do it.", "b": "For b."}
        assert with_instructions(shown, "b", "Do it.").views == {"b": "For b.\n\nDo it."}
        assert with_instructions(shown, "b", "") == shown

    def test_each_step_draws_a_path_which_is_known_afterwards(self, tmp_path: Path) -> None:
        organization = flow(tmp_path, FORK)
        episode, _ = played(organization, "a", "b", "c", steps=12)
        paths = episode_paths(organization, episode, 0)
        assert [name for path in paths for name in path] == [action.agent for action in episode.actions]
        assert set(paths) == {("a", "b"), ("a", "c")}

    def test_episodes_that_are_played_at_once_draw_paths_of_their_own(self, tmp_path: Path) -> None:
        acts = [lambda joint, last=n == 11: Step(Observation("on"), 1.0, terminated=last) for n in range(12)]
        organization = flow(tmp_path, FORK)
        whole = game(Script(acts), "a", "b", "c", organization=organization)

        async def both() -> list[Episode]:
            attempts = [Attempt(Task(name, "begin"), "train/0") for name in ("t0", "t1")]
            return await asyncio.gather(*(play(whole, attempt) for attempt in attempts))

        first, second = (episode_paths(organization, episode, 0) for episode in asyncio.run(both()))
        assert first != second

    def test_a_seed_draws_the_paths_that_it_always_drew(self) -> None:
        drawn = [sample_step_path(FORK, "", 0, step, 8, 1.0) for step in range(10)]
        assert drawn == [("a", name) for name in "bbbbbbbcbb"], "else the paths of episodes on disk are lost"

    def test_a_router_chooses_edges_and_is_not_asked_where_there_is_one(self, tmp_path: Path) -> None:
        episode, engine = played(flow(tmp_path, FORK, router="r"), "r", "a", "b", "c")
        assert [action.agent for action in episode.actions] == ["a", "r", "c"]
        assert "You may go on with:" in next(text for key, text in engine.asked if key.agent == "r")
        assert [*episode.actions[1].sees] == ["0/a/0"], "it chooses by what was done"

    def test_a_router_chooses_the_first_node_too_and_where_to_stop(self, tmp_path: Path) -> None:
        wide = network("source a 2", "source c 1", "a sink 1", "c sink 1")
        episode, _ = played(flow(tmp_path, wide, router="r"), "r", "a", "c")
        assert [action.agent for action in episode.actions] == ["r", "c"]
        ends = network("source a 1", "a b 2", "a sink 1", "b sink 1")
        ends = replace(ends, nodes=(ends.nodes[0], replace(ends.nodes[1], example="Compute\nit.")))
        episode, engine = played(flow(tmp_path, ends, router="r"), "r", "a", "b", chosen="stop")
        assert [action.agent for action in episode.actions] == ["a", "r"]
        assert "You may go on with:\nb: Compute it." in engine.asked[-1][1].replace("\\n", "\n")

    def test_a_router_is_told_80_characters_of_each_node(self, tmp_path: Path) -> None:
        ends = network("source a 1", "a b 2", "a sink 1", "b sink 1")
        for length, shown in ((80, "x" * 80), (81, "x" * 80 + " ")):
            long = replace(ends, nodes=(ends.nodes[0], replace(ends.nodes[1], example="x" * length)))
            _, engine = played(flow(tmp_path, long, router="r"), "r", "a", "b", chosen="stop")
            assert f"b: {shown}" in engine.asked[-1][1]

    def test_a_path_is_of_8_nodes_at_most_and_drawn_by_the_networks_own_odds_unless_told_otherwise(
        self, tmp_path: Path
    ) -> None:
        names = [f"n{number}" for number in range(10)]
        line = network(*(f"{a} {b} 1" for a, b in zip([SOURCE, *names], [*names, SINK], strict=True)))
        episode, _ = played(flow(tmp_path, line), *names)
        assert [action.agent for action in episode.actions] == names[:8]
        assert flow(tmp_path, FORK).temperature == 1.0

    def test_a_router_is_not_asked_where_one_node_alone_may_come_next(self, tmp_path: Path) -> None:
        back = network("source a 1", "a c 1", "c a 1", "c sink 1")  # and a was here already
        episode, _ = played(flow(tmp_path, back, router="r"), "r", "a", "c")
        assert [action.agent for action in episode.actions] == ["a", "c"]
        passed = network("source a 2", "source c 1", "a sink 1", "c sink 1", skips={"": ("a",)})  # somebody has to act
        episode, _ = played(flow(tmp_path, passed, router="r"), "r", "a", "c")
        assert [action.agent for action in episode.actions] == ["c"]
        last = network("source a 1", "a b 1", "b sink 1", skips={"": ("b",)})
        episode, _ = played(flow(tmp_path, last, router="r"), "r", "a", "b")
        assert [action.agent for action in episode.actions] == ["a"]

    def test_a_router_goes_on_over_what_is_skipped(self) -> None:
        found = network("source a 1", "a b 3", "b c 1", "b sink 1", "a c 1", "c sink 1", skips={"k": ("b",)})
        assert router_options(found, "", "a", ["a"]) == ["b", "c"]
        assert router_options(found, "k", "a", ["a"]) == ["c", SINK]
        assert router_options(found, "k", SOURCE, []) == ["a"]

    def test_a_router_never_goes_back(self) -> None:
        found = network("source a 1", "a b 1", "b a 1", "b sink 1")
        assert router_options(found, "", "b", ["a", "b"]) == [SINK]

    def test_with_a_router_somebody_acts_where_all_is_skipped(self, tmp_path: Path) -> None:
        line = network("source a 2", "source b 1", "a sink 1", "b sink 1", skips={"": ("a", "b")})
        episode, _ = played(flow(tmp_path, line, router="r"), "r", "a", "b")
        assert [action.agent for action in episode.actions] == ["a"], "the one that came first most often"

    def test_agents_that_are_not_there(self, tmp_path: Path) -> None:
        organization = flow(tmp_path, FORK, router="b")
        found = list(organization.problems(["a", "b"]))
        assert any("no agent is called 'c'" in one for one in found)
        assert any("'b' plays nodes itself" in one for one in found)
        assert list(flow(tmp_path, FORK, router="r").problems(["r", "a", "b", "c"])) == []
        (lost,) = flow(tmp_path, FORK, router="r").problems(["a", "b", "c"])
        assert "no agent is called 'r'" in lost
        assert list(flow(tmp_path, FORK).problems(["a", "b", "c"])) == []

    def test_a_run_goes_on_with_the_network_that_it_began_with_or_not_at_all(self, tmp_path: Path) -> None:
        organization = flow(tmp_path, FORK)
        assert organization.digest == FORK.digest
        assert Flow(network=organization.network, digest=FORK.digest) == organization
        write_network(Path(organization.network), network("source a 1", "a sink 1"))
        with pytest.raises(ValueError, match="is another one than this was begun with"):
            Flow(network=organization.network, digest=organization.digest)
        Path(organization.network).unlink()
        with pytest.raises(ValueError, match=r"\nnetwork\n.*cannot read the flow network"):
            Flow(network=organization.network)


class TestBoard:
    def test_the_likeliest_edges_are_played_and_told(self, tmp_path: Path) -> None:
        others = [f"{start} {end} 1" for n in range(20) for start, end in ((SOURCE, f"n{n}"), (f"n{n}", SINK))]
        wide = network(*others, "source a 2", "a sink 1")
        made = board(tmp_path, wide, lambda nodes, task: True, TASKS[:9])
        assert made.greedy_path(wide, "") == ("a",)
        episodes = made.play_greedy(wide, [Attempt(task, "train/0") for task in TASKS[:9]])
        assert {action.agent for episode in episodes for action in episode.actions} == {"a"}

    def test_episodes_that_failed_tell_nothing(self, tmp_path: Path) -> None:
        line = network("source a 1", "a sink 1")
        made = failing(board(tmp_path, line, lambda nodes, task: task.id == "t2", TASKS[:4]), "t0", "t1")
        assert made.task_outcomes(line, TASKS[:4]) == {"t2": True, "t3": False}

    def test_nothing_is_judged_by_tasks_of_which_nothing_is_known(self) -> None:
        for judge in (estimate_gain, bound_gain):
            with pytest.raises(ValueError, match="of none is it known whether it was solved"):
                judge({}, {"t0": True})

    def test_a_task_of_which_nothing_is_known_any_more_is_lost(self) -> None:
        assert bound_gain({"t0": True, "t1": False}, {}).gain == -0.5
        assert bound_gain({"t0": True, "t1": False}, {"t0": True, "t1": True}).gain == 0.5


class TestTuning:
    def test_what_is_not_said_is_the_default(self) -> None:
        growth = GrowthOptions(0.5, 1, with_instructions=True, excluded_roles=frozenset(), dimensions=256, embed="")
        assert GrowthOptions() == growth
        assert PathLearningOptions() == PathLearningOptions(40, 64, 2.0, 0.0)
        assert RewordingOptions() == RewordingOptions(3, 100, 4, "better", 0.01, 2, 4000)

    def test_paths_are_learned_for_each_kind_of_task(self, tmp_path: Path) -> None:
        found = network(
            "source a 1", "source b 1", "a sink 1", "b sink 1", contexts=contexts("Add up.", "Write a letter.")
        )
        tasks = [Task(f"t{n}", ("Add up.", "Write a letter.")[n % 2]) for n in range(40)]
        made = board(tmp_path, found, lambda nodes, task: (nodes[0].name == "a") == (task.prompt == "Add up."), tasks)
        earned = dict[int, float]()
        better = learn_paths(made, found, PathLearningOptions(steps=8, batch=40, rate=8.0), earned.__setitem__)
        assert sum(made.task_outcomes(better, tasks).values()) == 40
        assert list(earned) == [1, 2, 3, 4, 5, 6, 7, 8]
        assert earned[8] > 0.9 > earned[1]
        assert learn_paths(made, found, PathLearningOptions(steps=8, batch=40, rate=8.0)) == better

    def test_twice_the_rate_is_twice_the_step(self, tmp_path: Path) -> None:
        found = network("source a 1", "source b 1", "a sink 1", "b sink 1")
        made = board(tmp_path, found, lambda nodes, task: nodes[0].name == "a", TASKS[:40])
        options = [PathLearningOptions(1, 40, rate) for rate in (3.0, 6.0)]
        one, two = (learn_paths(made, found, option).weights[""][SOURCE]["a"] for option in options)
        assert two == pytest.approx(2 * one)
        assert one > 0.1

    def test_each_step_draws_tasks_of_its_own(self, tmp_path: Path) -> None:
        line = network("source a 1", "a sink 1")
        made, attempts = watched(board(tmp_path, line, lambda nodes, task: True, TASKS[:40]))
        learn_paths(made, line, PathLearningOptions(steps=2, batch=8))
        assert [(one.stream, one.sample) for one in attempts] == [
            (f"flow/learn/{step}", n) for step in (0, 1) for n in range(8)
        ]
        for step in (0, 1):
            drawn = generator(0, "flow/learn", step).integers(40, size=8)
            assert [one.task for one in attempts[8 * step :][:8]] == [TASKS[place] for place in drawn]

    def test_nothing_is_learned_from_episodes_that_failed(self, tmp_path: Path) -> None:
        found = network("source a 1", "source b 1", "a sink 1", "b sink 1")
        made = board(tmp_path, found, lambda nodes, task: task.id == "t0", TASKS[:2])
        means = list[float]()
        for lost in ("t0", "t1"):
            learn_paths(failing(made, lost), found, PathLearningOptions(1, 20), lambda _, mean: means.append(mean))
        assert means == [0.0, 1.0]
        with pytest.raises(ValueError, match="no episode of a flow network could be scored"):
            learn_paths(failing(made, "t0", "t1"), found, PathLearningOptions(1, 20))

    def test_what_nodes_cost_makes_short_paths_likelier(self, tmp_path: Path) -> None:
        found = network("source a 1", "source b 1", "a b 1", "b sink 1")
        made = board(tmp_path, found, lambda nodes, task: True, TASKS[:40])
        better = learn_paths(made, found, PathLearningOptions(steps=10, batch=40, rate=20.0, cost=0.1))
        assert made.active_nodes(better, "") == ("b",)

    def test_what_is_skipped_costs_nothing(self, tmp_path: Path) -> None:
        line = network("source a 1", "a b 1", "b sink 1", skips={"": ("a",)})
        made = board(tmp_path, line, lambda nodes, task: True, TASKS[:1])
        (episode,) = made.play(made.flow.with_network(line, 1.0), [Attempt(TASKS[0], "train/0")])
        returns = _path_returns(made, line, episode, 0, 0.25)
        assert [(one.path, one.episode_return) for one in returns] == [(("a", "b"), 0.75)]

    def test_a_proposal_is_kept_where_held_out_success_is_surely_better(self, tmp_path: Path) -> None:
        def solves(nodes: tuple[Node, ...], task: Task) -> bool:
            return int(task.id[1:]) % 10 < {"good": 8, "bad": 1}.get(nodes[0].instructions, 5)

        line = network("source a 1", "a sink 1")
        words, seen = iter(("bad", "good", "", "bad", "bad", "bad")), list[AttemptTranscript]()

        def critic(node: Node, failures: Any) -> str:
            seen.extend(failures)
            return next(words)

        options = RewordingOptions(rounds=6, patience=2)
        better = reword_nodes(board(tmp_path, line, solves, TASKS[:100]), line, critic, options)
        assert better.node("a").instructions == "good"
        assert [(one.after, one.kept, round(one.gain, 2)) for one in better.lineage] == [
            ("bad", False, -0.4), ("good", True, 0.3), ("bad", False, -0.7),
        ]  # fmt: skip
        assert next(words) == "bad"  # nothing, and a refusal: the node is left in peace
        assert len(seen) == 4 * 4
        assert seen[0] == AttemptTranscript("Add up.", (("a", "a"), ("outcome", "reward 0, not solved")))
        assert line.lineage == ()  # what is played does not change

    def test_a_proposal_is_accepted_by_what_it_gained_and_the_ends_of_its_interval(self) -> None:
        better, no_worse = RewordingOptions(accept="better"), RewordingOptions(accept="no_worse", tolerance=0.01)
        assert better.accepts(GainEstimate(0.1, 0.001, 0.2, 40))
        assert not better.accepts(GainEstimate(0.1, 0.0, 0.2, 40))
        assert no_worse.accepts(GainEstimate(0.02, -0.01, 0.05, 40))
        assert not no_worse.accepts(GainEstimate(0.02, -0.011, 0.05, 40))
        assert not no_worse.accepts(GainEstimate(0.0, 0.0, 0.0, 40))

    def test_nodes_that_fail_most_are_asked_about_first(self, tmp_path: Path) -> None:
        made, found = two_kinds(tmp_path, lambda nodes, task: False)
        asked = list[str]()

        def critic(node: Node, failures: object) -> str:
            asked.append(node.name)
            return ""

        reword_nodes(made, found, critic, RewordingOptions(rounds=1))
        assert asked == ["m", "z", "a"], "m and z in the order of names"

    def test_a_node_without_proposals_is_left_in_peace_and_the_others_are_not(self, tmp_path: Path) -> None:
        def solves(nodes: tuple[Node, ...], task: Task) -> bool:
            return int(task.id[1:]) % 3 < nodes[0].instructions.count("!")

        made, found = two_kinds(tmp_path, solves)
        asked, told = list[str](), list[tuple[str, bool]]()

        def critic(node: Node, failures: object) -> str:
            asked.append(node.name)
            return {"m": node.instructions, "z": f" {node.instructions}!\n", "a": "x" * 12}[node.name]

        def tell(change: Change, now: FlowNetwork) -> None:
            told.append((change.after, now.node("z").instructions == change.after))

        better = reword_nodes(made, found, critic, RewordingOptions(rounds=2, patience=1, max_characters=11), tell)
        assert asked == ["m", "z", "a", "z"]
        assert told == [("You do z.!", True), ("You do z.!!", True)]
        gain, (low, high) = paired_difference([False] * 30, [number % 3 < 1 for number in range(30)])
        assert better.lineage[0] == Change(
            "instructions", "z", "", "You do z.", "You do z.!", kept=True, gain=gain, low=low, high=high, tasks=30
        )

    def test_a_proposal_may_be_as_long_as_it_may(self, tmp_path: Path) -> None:
        line = network("source a 1", "a sink 1")
        made = board(tmp_path, line, lambda nodes, task: False, TASKS[:9])
        for longest, tried in ((4, ["good"]), (3, [])):
            options = RewordingOptions(rounds=1, max_characters=longest)
            changes = reword_nodes(made, line, lambda *_: "good", options).lineage
            assert [one.after for one in changes] == tried

    def test_a_node_is_judged_by_the_tasks_of_which_something_is_known(self, tmp_path: Path) -> None:
        came: Any = {"h0": None, "h1": False, "h2": False}
        made, found = two_kinds(tmp_path, lambda nodes, task: came.get(task.id, False))
        adds, letter = (context.example for context in found.contexts)
        held_out = [Task("h0", adds), Task("h1", letter), Task("h2", letter)]
        made = replace(made, held_out=held_out)
        changes = reword_nodes(made, found, lambda *_: "new", RewordingOptions(rounds=1)).lineage
        assert [(one.node, one.tasks) for one in changes] == [("a", 2)], "of the other kind nothing is known"
        came["h1"] = None
        changes = reword_nodes(made, found, lambda *_: "new", RewordingOptions(rounds=1)).lineage
        assert [(one.node, one.tasks) for one in changes] == [("a", 1)]

    def test_nothing_is_reworded_where_nobody_says_what_was_solved(self, tmp_path: Path) -> None:
        line = network("source a 1", "a sink 1")
        made = board(tmp_path, line, lambda nodes, task: None, TASKS[:5])  # type: ignore[arg-type, return-value]
        with pytest.raises(ValueError, match="of none is it known whether it was solved"):
            reword_nodes(made, line, lambda *_: "new", RewordingOptions())

    def test_each_round_looks_for_failures_among_tasks_of_its_own(self, tmp_path: Path) -> None:
        line = network("source a 1", "a sink 1")
        made, attempts = watched(board(tmp_path, line, lambda nodes, task: True, TASKS[:40]))
        for number in (0, 1):
            _collect_failures(made, line, number, 8)
            drawn = generator(0, "flow/failed", number).integers(40, size=8)
            assert [one.task for one in attempts[8 * number :]] == [TASKS[place] for place in drawn]
            assert [(one.stream, one.sample) for one in attempts[8 * number :]] == [
                (f"flow/failed/{number}", n) for n in range(8)
            ]

    def test_a_critic_reads_every_step_by_the_names_of_nodes(self, tmp_path: Path) -> None:
        line = network("source a 1", "a b 1", "b sink 1")
        line = replace(line, nodes=(replace(line.nodes[0], role="x"), replace(line.nodes[1], role="y")))
        actions = tuple(make_action(role, step=step, text=f"{role}{step}") for step in range(3) for role in "xy")
        failed = Episode(TASKS[0], "s", 0, actions, "terminated", success=False)
        made = replace(
            board(tmp_path, line, lambda nodes, task: False, TASKS[:1]),
            play=lambda _, attempts: [failed, replace(failed, status="failed")],
        )
        said = ("a", "x0"), ("b", "y0"), ("a", "x1"), ("b", "y1"), ("a", "x2"), ("b", "y2")
        whole = AttemptTranscript("Add up.", (*said, ("outcome", "reward 0, not solved")))
        assert _collect_failures(made, line, 0, 2) == {"a": [whole], "b": [whole]}

    def test_a_node_is_judged_on_the_kinds_of_tasks_that_it_acts_in(self, tmp_path: Path) -> None:
        kinds = {"a": "Add up.", "b": "Write a letter."}
        found = network("source a 2", "source b 2", "a sink 2", "b sink 2", contexts=contexts(*kinds.values()))
        of = ({kinds["a" if "a" in (edge.start, edge.end) else "b"]: 2} for edge in found.edges)
        edges = tuple(replace(edge, by_context=counts) for edge, counts in zip(found.edges, of, strict=True))
        found = replace(found, edges=edges)
        tasks = [Task(f"t{n}", kinds["b" if n % 4 == 0 else "a"]) for n in range(12)]
        made = board(tmp_path, found, lambda nodes, task: nodes[0].instructions == "new", tasks)
        better = reword_nodes(made, found, lambda *_: "new", RewordingOptions(rounds=1, attempts=20))
        assert {(one.node, one.tasks) for one in better.lineage} == {("a", 9), ("b", 3)}

    def test_a_critic_reads_what_is_known_to_have_failed(self, tmp_path: Path) -> None:
        line = network("source a 1", "a sink 1")
        tasks = [Task(f"t{n}", f"Add {n}.") for n in range(3)]
        came: Any = {"t0": None, "t1": False, "t2": True}
        found = _collect_failures(board(tmp_path, line, lambda nodes, task: came[task.id], tasks), line, 0, 20)
        assert {failure.task for failure in found["a"]} == {"Add 1."}

    def test_a_proposal_without_end_is_none_and_what_is_kept_is_told_at_once(self, tmp_path: Path) -> None:
        line, told = network("source a 1", "a sink 1"), list[str]()
        words = iter(("x" * 4001, "good"))
        whole = board(tmp_path, line, lambda nodes, task: nodes[0].instructions == "good", TASKS[:40])
        better = reword_nodes(
            whole, line, lambda *_: next(words), RewordingOptions(rounds=2), lambda _, found: told.append(found.digest)
        )
        assert [one.after for one in better.lineage] == ["good"]
        assert told == [better.digest]

    def test_no_worse_takes_a_small_gain_that_may_be_a_small_loss(self, tmp_path: Path) -> None:
        line = network("source a 1", "a sink 1")

        def solves(nodes: tuple[Node, ...], task: Task) -> bool:
            return int(task.id[1:]) < (151 if nodes[0].instructions == "new" else 150)

        made = board(tmp_path, line, solves, TASKS)
        for accept, kept in (("better", False), ("no_worse", True)):
            improving = RewordingOptions(rounds=1, accept=accept, tolerance=0.01)  # type: ignore[arg-type]
            assert [one.kept for one in reword_nodes(made, line, lambda node, _: "new", improving).lineage] == [kept]

    def test_what_adds_nothing_is_skipped_and_what_is_needed_is_not(self, tmp_path: Path) -> None:
        line = network("source a 1", "a b 1", "b c 1", "c sink 1")
        needs = board(tmp_path, line, lambda nodes, task: any(node.name == "b" for node in nodes), TASKS)
        told = list[tuple[Change, FlowNetwork]]()
        shorter = skip_nodes(needs, line, 0.01, lambda *given: told.append(given))
        assert shorter.skips == {"": ("a", "c")}
        assert needs.active_nodes(shorter, "") == ("b",)
        assert [(one.node, one.kept) for one in shorter.lineage] == [("a", True), ("b", False), ("c", True)]
        assert [change for change, _ in told] == [*shorter.lineage]
        assert [found.skips.get("", ()) for _, found in told] == [("a",), ("a",), ("a", "c")]
        low, high = gain_bounds([0.0] * 300)
        assert shorter.lineage[0] == Change("skip", "a", "", "", "", True, 0.0, low, high, 300)

    def test_a_bound_of_just_the_tolerance_is_within_it(self, tmp_path: Path) -> None:
        line = network("source a 1", "a b 1", "b sink 1")
        made = board(tmp_path, line, lambda nodes, task: True, TASKS[:50])
        (low, _) = gain_bounds([0.0] * 50)
        assert skip_nodes(made, line, -low).skips == {"": ("a",)}

    def test_a_kind_of_which_nothing_is_known_keeps_no_other_from_skipping(self, tmp_path: Path) -> None:
        kinds = contexts("Add up.", "Write a letter.")
        line = network("source a 1", "a b 1", "b sink 1", contexts=kinds)
        came: Any = {"unknown": None}
        tasks = [Task("unknown", "Add up."), *(replace(task, prompt="Write a letter.") for task in TASKS[:40])]
        made = board(tmp_path, line, lambda nodes, task: came.get(task.id, True), tasks)
        assert skip_nodes(made, line, 0.2).skips == {"Write a letter.": ("a",)}

    def test_a_skip_is_judged_by_the_bound_of_what_it_costs_and_not_by_the_estimate(self, tmp_path: Path) -> None:
        """Two points are lost; with 300 tasks that may be 4."""
        line = network("source a 1", "a b 1", "b sink 1")
        tuned = board(tmp_path, line, lambda nodes, task: len(nodes) == 2 or int(task.id[1:]) >= 6, TASKS)
        assert skip_nodes(tuned, line, 0.03).skips == {}
        assert skip_nodes(tuned, line, 0.05).skips == {"": ("a",)}
        (refused, _) = skip_nodes(tuned, line, 0.03).lineage
        assert (refused.gain, refused.kept) == (-0.02, False)
        assert -0.05 < refused.low < -0.03

    def test_skips_together_cost_no_more_than_one_may(self, tmp_path: Path) -> None:
        """Each of five nodes is worth 1.6 points: any one of them may go at a tolerance of 4, and no second one."""
        names = [f"n{number}" for number in range(5)]
        line = network(*(f"{a} {b} 1" for a, b in zip([SOURCE, *names], [*names, SINK], strict=True)))

        def solves(nodes: tuple[Node, ...], task: Task) -> bool:
            return int(task.id[1:]) >= 4 * (5 - len(nodes))

        shorter = skip_nodes(board(tmp_path, line, solves, TASKS), line, 0.04)
        assert shorter.skips == {"": ("n0",)}
        assert [one.kept for one in shorter.lineage] == [True, False, False, False, False]
        assert all(one.low < -0.01 for one in shorter.lineage)

    def test_few_tasks_say_too_little_to_skip(self, tmp_path: Path) -> None:
        line = network("source a 1", "a b 1", "b sink 1")
        made = board(tmp_path, line, lambda nodes, task: True, TASKS[:50])
        assert not skip_nodes(made, line, 0.01).skips

    def test_a_skip_that_costs_the_tolerance_passes_once_in_twenty(self) -> None:
        before = dict.fromkeys(map(str, range(300)), True)
        lows = [bound_gain(before, {task: int(task) >= lost for task in before}).low for lost in range(12)]
        passing = [lost for lost, low in enumerate(lows) if low >= -0.01]
        assert passing == [0]
        assert sum(math.comb(300, k) * 0.01**k * 0.99 ** (300 - k) for k in passing) <= 0.05

    def test_episodes_that_fail_count_against_what_was_tried(self) -> None:
        before = {str(n): n < 20 for n in range(40)}
        found = estimate_gain(before, {str(n): True for n in range(14)})  # of the others nothing is known any more
        assert (found.tasks, round(found.gain, 3)) == (40, -0.15)
        assert estimate_gain(before, {}).gain == -0.5

    def test_a_network_names_no_code_that_is_run(self, tmp_path: Path) -> None:
        write_network(tmp_path / "n.json", replace(FORK, embed="tests.flow_teams:vectors"))
        with pytest.raises(ValueError, match=r"made by 'tests.flow_teams:vectors', and team.embed is ''"):
            Flow(network=str(tmp_path / "n.json"))
        ours = Flow(network=str(tmp_path / "n.json"), embed="tests.flow_teams:vectors")
        assert match_context(ours.flow, "Add up.") == ""
        with pytest.raises(ValueError, match="'math:pi' is no function"):
            Flow(network=str(tmp_path / "n.json"), embed="math:pi")
        assert describe_foreign_code({"team": ours.model_dump(mode="json")}) == [
            "team.embed = tests.flow_teams:vectors"
        ]

    def test_where_nobody_says_what_was_solved(self, tmp_path: Path) -> None:
        line = network("source a 1", "a b 1", "b sink 1")
        made = board(tmp_path, line, lambda nodes, task: None, TASKS[:5])  # type: ignore[arg-type, return-value]
        with pytest.raises(ValueError, match="of none is it known whether it was solved"):
            skip_nodes(made, line, 0.01)


def test_a_network_is_grown_and_shown_by_command(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder = RunFolder.create(parse_recipe(recipe("tiny", tmp_path)))
    actions = (make_action("a", text="plan the parts"), make_action("b", text="do them", index=1))
    done = Episode(Task("t", "Add up."), "train/0", 0, actions, "terminated", success=True)
    write_episodes(folder.episodes / "step_000001.parquet", [done])
    grow([folder.path], tmp_path / "network.json", GrowthOptions(), None)
    grow([folder.path], tmp_path / "network.json", GrowthOptions(), tmp_path / "network.json")
    show(tmp_path / "network.json", tmp_path / "network.svg")
    said = capsys.readouterr().out
    assert "2 nodes, 3 edges, 1 kind of tasks" in said
    assert [edge.count for edge in read_network(tmp_path / "network.json").edges] == [2, 2, 2]
    assert (tmp_path / "network.svg").read_text().startswith("<?xml")


@pytest.mark.slow
def test_the_planted_world_plays_on_threads_as_on_its_bench(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(BENCHMARKS)
    import flow_world as world

    from marft_lab.flows.growth import grow_network
    from marft_lab.scripted_team import ScriptedTeam

    run = world.recipe(3, {"organization": "orchestrated", "max_calls": 6}, router=True)
    tasks = list(run.environment.tasks("train"))[:60]  # type: ignore[attr-defined]
    habit = world.Bench(run, run.environment, world.by_habit, ("router", *world.SEATS))
    recorded = habit(run.team, [Attempt(task, "train/0") for task in tasks])
    network = grow_network(recorded, GrowthOptions(0.4, excluded_roles=frozenset({"router"})))
    write_network(tmp_path / "network.json", network)
    run = world.recipe(3, {"organization": "flow", "network": str(tmp_path / "network.json")}, router=False)
    attempts = [Attempt(task, "train/1") for task in tasks[:4]]
    bench = world.Bench(run, run.environment, world.by_node, tuple(world.SEATS))(run.team, attempts)
    with ScriptedTeam(run, world.by_node) as team:
        threads = list(team.play_attempts(attempts))
    assert [episode.error for episode in threads] == [""] * 4
    assert [[a.text for a in e.actions] for e in threads] == [[a.text for a in e.actions] for e in bench]
    assert [episode.success for episode in threads] == [episode.success for episode in bench]


@pytest.mark.slow
def test_a_team_and_its_router_train_on_a_network(tmp_path: Path) -> None:
    nodes = (Node("think", "reasoner", "Think."), Node("do", "actor", "Do it."), Node("redo", "actor", "Once more."))
    edges = network("source think 1", "think do 1", "think redo 1", "do redo 1", "do sink 1", "redo sink 1").edges
    write_network(tmp_path / "network.json", FlowNetwork(nodes, edges))
    table = recipe("tiny", tmp_path, team={"organization": "flow", "network": "network.json", "router": "router"})
    table["policies"]["router"] = {"model": "base"}
    table["agents"].insert(0, {"role": "router", "policy": "router"})
    run = parse_recipe({**table, "recipe_folder": str(tmp_path)})
    assert "digest" in to_toml(run)
    folder = RunFolder.create(run)
    assert train(run, folder).step == 2
    actions = [a for e in read_episodes(folder.episodes / "step_000002.parquet") for a in e.actions]
    assert {action.agent for action in actions} == {"router", "reasoner", "actor"}
    assert {action.text for action in actions if action.choice} <= {"do", "redo", "stop"}
    assert folder.read_metrics()[-1]["skipped_updates"] == 0
