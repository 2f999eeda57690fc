"""The organization ``flow``, and what makes its network better: what is said to whom, what is kept and what refused."""

from __future__ import annotations

import asyncio
import math
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from marft.cli.flows import grow, show
from marft.config import parse_recipe
from marft.config.load import to_toml
from marft.export.recipe import runs_code
from marft.flows.board import bounded, judged
from marft.flows.choosing import context_of
from marft.flows.growing import Growth
from marft.flows.improving import Failure, Improving, _failures, reworded
from marft.flows.learning import Learning, _walked, edges_learned
from marft.flows.network import SINK, SOURCE, FlowNetwork, Node, read_network, write_network
from marft.flows.organization import Flow, options_at, paths_of
from marft.flows.skipping import skipped
from marft.game.game import Attempt
from marft.game.play import play
from marft.runs.episodes import read_episodes, write_episodes
from marft.runs.folder import RunFolder
from marft.training import train
from marft.types import Episode, Observation, Step, Task
from tests.episodes import make_action
from tests.fakes import FakeEngine, Script, game
from tests.flow_teams import board, contexts, flow, network
from tests.helpers import recipe

BENCHMARKS = Path(__file__).parents[1] / "benchmarks"
FORK = network("source a 3", "a b 2", "a c 1", "b sink 2", "c sink 1")
TASKS = [Task(f"t{number}", "Add up.") for number in range(300)]


def played(organization: Flow, *roles: str, steps: int = 1) -> tuple[Episode, FakeEngine]:
    engine = FakeEngine(lambda key, prompt: "c" if key.agent == "r" else f"{key.agent} says {key.call}")
    acts = [lambda joint, last=n == steps - 1: Step(Observation("on"), 1.0, terminated=last) for n in range(steps)]
    whole = game(Script(acts), *roles, engine=engine, organization=organization)
    episode = asyncio.run(play(whole, Attempt(Task("t0", "begin"), "train/0")))
    assert episode.status == "terminated", episode.error
    return episode, engine


class TestOrganization:
    def test_nodes_are_played_by_their_roles_which_are_told_their_instructions(self, tmp_path: Path) -> None:
        episode, engine = played(flow(tmp_path, FORK, temperature=0.0), "a", "b", "c")
        assert [(action.agent, [*action.sees]) for action in episode.actions] == [("a", []), ("b", ["0/a/0"])]
        prompts = {key.agent: text for key, text in engine.asked}
        assert "You do a." in prompts["a"]
        assert "You do b." in prompts["b"]
        assert "You do a." not in prompts["b"]

    @pytest.mark.parametrize(("sees", "seen"), [("all", ["a", "b"]), ("last", ["b"]), ("nothing", [])])
    def test_what_is_seen_of_earlier_nodes(self, sees: str, seen: list[str], tmp_path: Path) -> None:
        line = network("source a 1", "a b 1", "b c 1", "c sink 1")
        episode, _ = played(flow(tmp_path, line, sees=sees), "a", "b", "c")
        assert [name.split("/")[1] for name in episode.actions[-1].sees] == seen

    def test_each_step_draws_a_path_which_is_known_afterwards(self, tmp_path: Path) -> None:
        organization = flow(tmp_path, FORK)
        episode, _ = played(organization, "a", "b", "c", steps=12)
        paths = paths_of(organization, episode, 0)
        assert [name for path in paths for name in path] == [action.agent for action in episode.actions]
        assert set(paths) == {("a", "b"), ("a", "c")}

    def test_a_router_chooses_edges_and_is_not_asked_where_there_is_one(self, tmp_path: Path) -> None:
        episode, engine = played(flow(tmp_path, FORK, router="r"), "r", "a", "b", "c")
        assert [action.agent for action in episode.actions] == ["a", "r", "c"]
        assert "You may go on with:" in next(text for key, text in engine.asked if key.agent == "r")
        assert [*episode.actions[1].sees] == ["0/a/0"], "it chooses by what was done"

    def test_a_router_goes_on_over_what_is_skipped(self) -> None:
        found = network("source a 1", "a b 3", "b c 1", "b sink 1", "a c 1", "c sink 1", skips={"k": ("b",)})
        assert options_at(found, "", "a", ["a"]) == ["b", "c"]
        assert options_at(found, "k", "a", ["a"]) == ["c", SINK]
        assert options_at(found, "k", SOURCE, []) == ["a"]

    def test_a_router_never_goes_back(self) -> None:
        found = network("source a 1", "a b 1", "b a 1", "b sink 1")
        assert options_at(found, "", "b", ["a", "b"]) == [SINK]

    def test_with_a_router_somebody_acts_where_all_is_skipped(self, tmp_path: Path) -> None:
        line = network("source a 1", "a sink 1", skips={"": ("a",)})
        episode, _ = played(flow(tmp_path, line, router="r"), "r", "a")
        assert [action.agent for action in episode.actions] == ["a"]

    def test_agents_that_are_not_there(self, tmp_path: Path) -> None:
        organization = flow(tmp_path, FORK, router="b")
        found = list(organization.problems(["a", "b"]))
        assert any("no agent is called 'c'" in one for one in found)
        assert any("'b' plays nodes itself" in one for one in found)

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


class TestTuning:
    def test_paths_are_learned_for_each_kind_of_task(self, tmp_path: Path) -> None:
        found = network(
            "source a 1", "source b 1", "a sink 1", "b sink 1", contexts=contexts("Add up.", "Write a letter.")
        )
        tasks = [Task(f"t{n}", ("Add up.", "Write a letter.")[n % 2]) for n in range(40)]
        made = board(tmp_path, found, lambda nodes, task: (nodes[0].name == "a") == (task.prompt == "Add up."), tasks)
        earned = list[float]()
        better = edges_learned(made, found, Learning(steps=8, batch=40, rate=8.0), lambda _, mean: earned.append(mean))
        assert sum(made.outcomes(better, tasks).values()) == 40
        assert earned[-1] > 0.9 > earned[0]
        assert edges_learned(made, found, Learning(steps=8, batch=40, rate=8.0)) == better

    def test_what_nodes_cost_makes_short_paths_likelier(self, tmp_path: Path) -> None:
        found = network("source a 1", "source b 1", "a b 1", "b sink 1")
        made = board(tmp_path, found, lambda nodes, task: True, TASKS[:40])
        better = edges_learned(made, found, Learning(steps=10, batch=40, rate=20.0, cost=0.1))
        assert made.acting(better, "") == ("b",)

    def test_what_is_skipped_costs_nothing(self, tmp_path: Path) -> None:
        line = network("source a 1", "a b 1", "b sink 1", skips={"": ("a",)})
        made = board(tmp_path, line, lambda nodes, task: True, TASKS[:1])
        (episode,) = made.play(made.flow.playing(line, 1.0), [Attempt(TASKS[0], "train/0")])
        assert [(one.path, one.earned) for one in _walked(made, line, episode, 0, 0.25)] == [(("a", "b"), 0.75)]

    def test_a_proposal_is_kept_where_held_out_success_is_surely_better(self, tmp_path: Path) -> None:
        def solves(nodes: tuple[Node, ...], task: Task) -> bool:
            return int(task.id[1:]) % 10 < {"good": 8, "bad": 1}.get(nodes[0].instructions, 5)

        line = network("source a 1", "a sink 1")
        words, seen = iter(("bad", "good", "", "bad", "bad", "bad")), list[Failure]()

        def critic(node: Node, failures: Any) -> str:
            seen.extend(failures)
            return next(words)

        better = reworded(board(tmp_path, line, solves, TASKS[:100]), line, critic, Improving(rounds=6, patience=2))
        assert better.node("a").instructions == "good"
        assert [(one.after, one.kept, round(one.gain, 2)) for one in better.lineage] == [
            ("bad", False, -0.4), ("good", True, 0.3), ("bad", False, -0.7),
        ]  # fmt: skip
        assert next(words) == "bad"  # nothing, and a refusal: the node is left in peace
        assert len(seen) == 4 * 4
        assert seen[0] == Failure("Add up.", (("a", "a"), ("outcome", "reward 0, not solved")))
        assert line.lineage == ()  # what is played does not change

    def test_a_node_is_judged_on_the_kinds_of_tasks_that_it_acts_in(self, tmp_path: Path) -> None:
        kinds = {"a": "Add up.", "b": "Write a letter."}
        found = network("source a 2", "source b 2", "a sink 2", "b sink 2", contexts=contexts(*kinds.values()))
        of = ({kinds["a" if "a" in (edge.start, edge.end) else "b"]: 2} for edge in found.edges)
        edges = tuple(replace(edge, by_context=counts) for edge, counts in zip(found.edges, of, strict=True))
        found = replace(found, edges=edges)
        tasks = [Task(f"t{n}", kinds["b" if n % 4 == 0 else "a"]) for n in range(12)]
        made = board(tmp_path, found, lambda nodes, task: nodes[0].instructions == "new", tasks)
        better = reworded(made, found, lambda *_: "new", Improving(rounds=1, attempts=20))
        assert {(one.node, one.tasks) for one in better.lineage} == {("a", 9), ("b", 3)}

    def test_a_critic_reads_what_is_known_to_have_failed(self, tmp_path: Path) -> None:
        line = network("source a 1", "a sink 1")
        tasks = [Task(f"t{n}", f"Add {n}.") for n in range(3)]
        came: Any = {"t0": None, "t1": False, "t2": True}
        found = _failures(board(tmp_path, line, lambda nodes, task: came[task.id], tasks), line, 0, 20)
        assert {failure.task for failure in found["a"]} == {"Add 1."}

    def test_a_proposal_without_end_is_none_and_what_is_kept_is_told_at_once(self, tmp_path: Path) -> None:
        line, told = network("source a 1", "a sink 1"), list[str]()
        words = iter(("x" * 4001, "good"))
        whole = board(tmp_path, line, lambda nodes, task: nodes[0].instructions == "good", TASKS[:40])
        better = reworded(
            whole, line, lambda *_: next(words), Improving(rounds=2), lambda _, found: told.append(found.digest)
        )
        assert [one.after for one in better.lineage] == ["good"]
        assert told == [better.digest]

    def test_no_worse_takes_a_small_gain_that_may_be_a_small_loss(self, tmp_path: Path) -> None:
        line = network("source a 1", "a sink 1")

        def solves(nodes: tuple[Node, ...], task: Task) -> bool:
            return int(task.id[1:]) < (151 if nodes[0].instructions == "new" else 150)

        made = board(tmp_path, line, solves, TASKS)
        for accept, kept in (("better", False), ("no worse", True)):
            improving = Improving(rounds=1, accept=accept, tolerance=0.01)  # type: ignore[arg-type]
            assert [one.kept for one in reworded(made, line, lambda node, _: "new", improving).lineage] == [kept]

    def test_what_adds_nothing_is_skipped_and_what_is_needed_is_not(self, tmp_path: Path) -> None:
        line = network("source a 1", "a b 1", "b c 1", "c sink 1")
        needs = board(tmp_path, line, lambda nodes, task: any(node.name == "b" for node in nodes), TASKS)
        shorter = skipped(needs, line, 0.01)
        assert shorter.skips == {"": ("a", "c")}
        assert needs.acting(shorter, "") == ("b",)
        assert [(one.node, one.kept) for one in shorter.lineage] == [("a", True), ("b", False), ("c", True)]

    def test_a_skip_is_judged_by_the_bound_of_what_it_costs_and_not_by_the_estimate(self, tmp_path: Path) -> None:
        """Two points are lost; with 300 tasks that may be 4."""
        line = network("source a 1", "a b 1", "b sink 1")
        tuned = board(tmp_path, line, lambda nodes, task: len(nodes) == 2 or int(task.id[1:]) >= 6, TASKS)
        assert skipped(tuned, line, 0.03).skips == {}
        assert skipped(tuned, line, 0.05).skips == {"": ("a",)}
        (refused, _) = skipped(tuned, line, 0.03).lineage
        assert (refused.gain, refused.kept) == (-0.02, False)
        assert -0.05 < refused.low < -0.03

    def test_skips_together_cost_no_more_than_one_may(self, tmp_path: Path) -> None:
        """Each of five nodes is worth 1.6 points: any one of them may go at a tolerance of 4, and no second one."""
        names = [f"n{number}" for number in range(5)]
        line = network(*(f"{a} {b} 1" for a, b in zip([SOURCE, *names], [*names, SINK], strict=True)))

        def solves(nodes: tuple[Node, ...], task: Task) -> bool:
            return int(task.id[1:]) >= 4 * (5 - len(nodes))

        shorter = skipped(board(tmp_path, line, solves, TASKS), line, 0.04)
        assert shorter.skips == {"": ("n0",)}
        assert [one.kept for one in shorter.lineage] == [True, False, False, False, False]
        assert all(one.low < -0.01 for one in shorter.lineage)

    def test_few_tasks_say_too_little_to_skip(self, tmp_path: Path) -> None:
        line = network("source a 1", "a b 1", "b sink 1")
        made = board(tmp_path, line, lambda nodes, task: True, TASKS[:50])
        assert not skipped(made, line, 0.01).skips

    def test_a_skip_that_costs_the_tolerance_passes_once_in_twenty(self) -> None:
        before = dict.fromkeys(map(str, range(300)), True)
        lows = [bounded(before, {task: int(task) >= lost for task in before}).low for lost in range(12)]
        passing = [lost for lost, low in enumerate(lows) if low >= -0.01]
        assert passing == [0]
        assert sum(math.comb(300, k) * 0.01**k * 0.99 ** (300 - k) for k in passing) <= 0.05

    def test_episodes_that_fail_count_against_what_was_tried(self) -> None:
        before = {str(n): n < 20 for n in range(40)}
        found = judged(before, {str(n): True for n in range(14)})  # of the others nothing is known any more
        assert (found.tasks, round(found.gain, 3)) == (40, -0.15)
        assert judged(before, {}).gain == -0.5

    def test_a_network_names_no_code_that_is_run(self, tmp_path: Path) -> None:
        write_network(tmp_path / "n.json", replace(FORK, embed="tests.flow_teams:vectors"))
        with pytest.raises(ValueError, match=r"made by 'tests.flow_teams:vectors', and team.embed is ''"):
            Flow(network=str(tmp_path / "n.json"))
        ours = Flow(network=str(tmp_path / "n.json"), embed="tests.flow_teams:vectors")
        assert context_of(ours.flow, "Add up.") == ""
        assert runs_code({"team": ours.model_dump(mode="json")}) == ["team.embed = tests.flow_teams:vectors"]

    def test_where_nobody_says_what_was_solved(self, tmp_path: Path) -> None:
        line = network("source a 1", "a b 1", "b sink 1")
        made = board(tmp_path, line, lambda nodes, task: None, TASKS[:5])  # type: ignore[arg-type, return-value]
        with pytest.raises(ValueError, match="of none is it known whether it was solved"):
            skipped(made, line)


def test_a_network_is_grown_and_shown_by_command(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder = RunFolder.create(parse_recipe(recipe("tiny", tmp_path)))
    actions = (make_action("a", text="plan the parts"), make_action("b", text="do them", index=1))
    done = Episode(Task("t", "Add up."), "train/0", 0, actions, "terminated", success=True)
    write_episodes(folder.episodes / "step_000001.parquet", [done])
    grow([folder.path], tmp_path / "network.json", Growth(), None)
    grow([folder.path], tmp_path / "network.json", Growth(), tmp_path / "network.json")
    show(tmp_path / "network.json", tmp_path / "network.svg")
    said = capsys.readouterr().out
    assert "2 nodes, 3 edges, 1 kind of tasks" in said
    assert [edge.count for edge in read_network(tmp_path / "network.json").edges] == [2, 2, 2]
    assert (tmp_path / "network.svg").read_text().startswith("<?xml")


@pytest.mark.slow
def test_the_planted_world_plays_on_threads_as_on_its_bench(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(BENCHMARKS)
    import flow_world as world

    from marft.flows.growing import grown
    from marft.scripted import ScriptedTeam

    run = world.recipe(3, {"organization": "orchestrated", "most": 6}, router=True)
    tasks = list(run.environment.tasks("train"))[:60]  # type: ignore[attr-defined]
    habit = world.Bench(run, run.environment, world.by_habit, ("router", *world.SEATS))
    recorded = habit(run.team, [Attempt(task, "train/0") for task in tasks])
    write_network(tmp_path / "network.json", grown(recorded, Growth(0.4, apart=frozenset({"router"}))))
    run = world.recipe(3, {"organization": "flow", "network": str(tmp_path / "network.json")}, router=False)
    attempts = [Attempt(task, "train/1") for task in tasks[:4]]
    bench = world.Bench(run, run.environment, world.by_node, tuple(world.SEATS))(run.team, attempts)
    with ScriptedTeam(run, world.by_node) as team:
        threads = list(team.attempt(attempts))
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
