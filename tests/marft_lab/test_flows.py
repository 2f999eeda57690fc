"""Flow networks: what is written reads back, what is alike becomes one node, and edges are learned as they should be."""

from __future__ import annotations

import json
import math
from collections import Counter
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from random import Random

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from marft.common.types import Choice, Episode, Task
from marft_lab.flows.edge_policy import (
    PathReturn,
    active_nodes,
    compute_advantages,
    edge_logits,
    edge_probabilities,
    log_prob_gradient,
    match_context,
    path_edges,
    reinforce_step,
    sample_path,
)
from marft_lab.flows.growth import GrowthOptions, grow_network
from marft_lab.flows.network import (
    ANY,
    SINK,
    SOURCE,
    Context,
    Edge,
    FlowNetwork,
    Node,
    add_vectors,
    cosine_similarity,
    embed_texts,
    find_nearest,
    read_network,
    write_network,
)
from tests.episodes import make_action
from tests.flow_teams import contexts, network

FEW = settings(max_examples=20)
TEXTS = ("plan the parts", "plan parts the", "compute it all", "now compute it all", "in euros", "zzz")
NAMES = ("a", "b", "c")


def episode(*texts: tuple[str, str], prompt: str = "Add 1 and 2.", success: bool | None = True) -> Episode:
    actions = tuple(make_action(role, call=place, text=text) for place, (role, text) in enumerate(texts))
    return Episode(Task("t", prompt), "train/0", 0, actions, "terminated", success=success)


def path_log_prob(network: FlowNetwork, context: str, path: tuple[str, ...], max_nodes: int) -> float:
    """The log-probability of a path at temperature 1, edge by edge."""
    total = 0.0
    for index, (start, end) in enumerate(path_edges(network, path, max_nodes)):
        total += math.log(edge_probabilities(edge_logits(network, context, start, path[:index]))[end])
    return total


@st.composite
def many(draw: st.DrawFn) -> list[Episode]:
    said = st.tuples(st.sampled_from(("x", "y")), st.sampled_from(TEXTS))
    one = st.builds(
        lambda texts, prompt, success: episode(*texts, prompt=prompt, success=success),
        st.lists(said, min_size=1, max_size=5), st.sampled_from(("Add 1 and 2.", "Write a letter.")), st.booleans(),
    )  # fmt: skip
    return [episode(("x", "plan the parts")), *draw(st.lists(one, max_size=5))]


@st.composite
def networks(draw: st.DrawFn) -> FlowNetwork:
    """Any edges between three nodes, with weights; the sink can be reached."""
    pairs = [(start, end) for start in (SOURCE, *NAMES) for end in (*NAMES, SINK) if start != end]
    pairs.remove((SOURCE, SINK))
    chosen = draw(st.sets(st.sampled_from(pairs), min_size=2)) | {(SOURCE, "a"), ("a", SINK)}
    count = st.integers(1, 9)
    made = network(*(f"{start} {end} {draw(count)}" for start, end in sorted(chosen)))
    weight = st.floats(-2, 2).map(lambda value: round(value, 3))
    rows = {row: {start: {} for start, _ in chosen} for row in (ANY, "c")}
    for row, starts in rows.items():
        for start, end in sorted(chosen):
            starts[start][end] = draw(weight)
        rows[row] = starts
    return replace(made, weights=rows)


def paths(found: FlowNetwork, context: str, most: int, begun: tuple[str, ...] = ()) -> Iterator[tuple[str, ...]]:
    """Every walk that there can be."""
    ends = edge_logits(found, context, begun[-1] if begun else SOURCE, begun) if len(begun) < most else {}
    if not ends:
        yield begun
    for end in ends:
        if end == SINK:
            yield begun
        else:
            yield from paths(found, context, most, (*begun, end))


class TestNetwork:
    @FEW
    @given(networks())
    def test_what_is_written_reads_back(self, found: FlowNetwork) -> None:
        from tempfile import TemporaryDirectory

        with TemporaryDirectory() as folder:
            path = Path(folder) / "network.json"
            write_network(path, found)
            assert read_network(path) == found
            assert read_network(path).digest == found.digest

    @pytest.mark.parametrize(
        ("change", "why"),
        [
            ({"colour": "red"}, "colour"),
            ({"edges": [{"start": SOURCE, "end": "nobody", "count": 1}]}, "names 'nobody', which is no node"),
            ({"edges": [{"start": SOURCE, "end": "a", "count": 1}]}, "no path leads from the source to the sink"),
            ({"edges": [{"start": SOURCE, "end": SINK, "count": 0}]}, "has been taken 0 times"),
            ({"edges": [{"start": SOURCE, "end": SINK}]}, "from the source to the sink, where nobody acts"),
            ({"skips": {"": ["nobody"]}}, "a skip names 'nobody'"),
            ({"nodes": [{"name": SINK, "role": "a"}]}, "no node may be called 'sink'"),
            ({"nodes": "none"}, "nodes"),
            ({"nodes": [{"name": "stop", "role": "a"}]}, "no node may be called 'stop'"),
            ({"edges": [{"start": SOURCE, "end": "a"}, {"start": SOURCE, "end": "a"}]}, "to 'a' comes twice"),
            ({"contexts": [{"name": "k"}, {"name": "k"}]}, "two contexts are called 'k'"),
            ({"contexts": [{"name": ""}]}, "a context has no name"),
            ({"contexts": [{"name": "k", "vector": [1.0]}]}, "the vector of 'k' is none of 256 finite numbers"),
            ({"nodes": [{"name": "a", "role": "a", "vector": [1.0]}]}, "the vector of 'a' is none of 256"),
            ({"dimensions": 0}, "vectors of 0 numbers"),
            (
                {"edges": [{"start": SOURCE, "end": "a", "by_context": {"k": -5, "l": 3}}]},
                "less than never in a context",
            ),
            ({"dimensions": 8193}, "vectors of 8193 numbers"),
            ({"edges": [{"start": SOURCE, "end": "a"}, {"start": "a", "end": SOURCE}]}, "from 'a' back to the source"),
            ({"edges": [{"start": SOURCE, "end": "a"}, {"start": SINK, "end": "a"}]}, "from the sink on to 'a'"),
        ],
    )
    def test_what_is_none_is_refused(self, change: dict[str, object], why: str, tmp_path: Path) -> None:
        table = json.loads(network("source a 1", "a sink 1").to_json())
        path = tmp_path / "network.json"
        path.write_text(json.dumps({**table, **change}))
        with pytest.raises(ValueError, match="marft flow grow RUN --output FILE makes one") as caught:
            read_network(path)
        assert why in str(caught.value)

    def test_one_that_is_not_there(self, tmp_path: Path) -> None:
        with pytest.raises(ValueError, match="No such file"):
            read_network(tmp_path / "network.json")

    def test_a_file_that_is_no_table_is_refused_as_a_whole(self, tmp_path: Path) -> None:
        (tmp_path / "network.json").write_text("[]")
        with pytest.raises(ValueError, match="is no flow network: "):
            read_network(tmp_path / "network.json")

    def test_a_network_keeps_its_digest_from_version_to_version(self) -> None:
        found = network("source a 1", "a sink 1")
        assert found.digest == "8c4860090837b6c9"
        assert json.loads(found.to_json())["edges"][1] == {"start": "a", "end": SINK, "count": 1, "by_context": {}}

    def test_each_problem_is_told_once_and_in_the_order_of_names(self) -> None:
        line, names = network("source a 1", "a sink 1"), tuple("hgfedcb")
        twice = tuple(Node(name, "a") for name in names * 2)
        assert replace(line, nodes=line.nodes + twice).problems() == [
            f"two nodes are called {name!r}" for name in sorted(names)
        ]
        assert replace(line, contexts=tuple(map(Context, names * 2))).problems() == [
            f"two contexts are called {name!r}" for name in sorted(names)
        ]
        assert replace(line, edges=line.edges + tuple(Edge("a", name) for name in names)).problems() == [
            f"an edge names {name!r}, which is no node" for name in sorted(names)
        ]
        assert replace(line, skips={"": names}).problems() == [
            f"a skip names {name!r}, which is no node" for name in sorted(names)
        ]
        assert replace(line, edges=(Edge(SOURCE, "b"),)).problems() == ["an edge names 'b', which is no node"]

    def test_numbers_are_finite(self) -> None:
        line = network("source a 1", "a sink 1", dimensions=2)
        for number in (math.nan, math.inf):
            assert replace(line, threshold=number).problems() == ["the threshold is no finite number"]
            assert replace(line, weights={"": {SOURCE: {"a": number}}}).problems() == ["a weight is no finite number"]
            odd = replace(line, nodes=(replace(line.nodes[0], vector=(0.0, number)),))
            assert odd.problems() == ["the vector of 'a' is none of 2 finite numbers"]

    def test_a_network_may_be_as_large_as_its_limits(self) -> None:
        line = network("source a 1", "a sink 1")
        for dimensions in (1, 8192):
            assert replace(line, dimensions=dimensions).problems() == []
        for count, found in ((1000, []), (1001, ["more than 1000 nodes or contexts"])):
            names = [f"n{number}" for number in range(count)]
            assert replace(line, contexts=tuple(map(Context, names))).problems() == found
            nodes = (*line.nodes, *(Node(name, "a") for name in names[1:]))
            assert replace(line, nodes=nodes).problems() == found

    def test_a_count_that_a_file_leaves_out_is_one(self, tmp_path: Path) -> None:
        edges = [{"start": SOURCE, "end": "a"}, {"start": "a", "end": SINK}]
        table = {"nodes": [{"name": "a", "role": "x"}], "edges": edges, "contexts": [{"name": "k"}]}
        (tmp_path / "network.json").write_text(json.dumps(table))
        found = read_network(tmp_path / "network.json")
        assert [one.count for one in (*found.nodes, *found.edges, *found.contexts)] == [1, 1, 1, 1]

    def test_an_edge_may_never_have_been_taken_in_a_context(self) -> None:
        line = network("source a 1", "a sink 1")
        assert replace(line, edges=(Edge(SOURCE, "a", 1, {"k": 0}), line.edges[1])).problems() == []

    def test_nodes_are_found_by_name_and_what_follows_them_by_count_and_name(self) -> None:
        found = network("source b 1", "source a 1", "source c 2", "a sink 1", "b sink 1", "c sink 1")
        assert found.node("a").instructions == "You do a."
        with pytest.raises(KeyError, match="nobody"):
            found.node("nobody")
        assert found.successors(SOURCE) == ("c", "a", "b")


class TestGrowing:
    def test_what_is_alike_is_one_node_and_what_another_agent_does_is_another(self) -> None:
        found = grow_network(
            [episode(("x", "plan the parts"), ("y", "plan the parts")), episode(("x", "plan parts the"), ("x", "zzz"))],
            GrowthOptions(0.5),
        )
        assert [(node.role, node.count) for node in found.nodes] == [("x", 2), ("y", 1), ("x", 1)]
        assert [node.name for node in found.nodes] == ["x: plan the parts", "y: plan the parts", "x: zzz"]
        told = "Do what was done here, for your own task:\nplan the parts"
        assert (found.nodes[0].instructions, found.nodes[0].example) == (told, "plan the parts")

    def test_an_example_is_what_was_said_first_of_which_400_characters_are_kept(self) -> None:
        said = [episode(("x", "  plan the parts\n"), ("y", " \n"), ("z", "9" * 500))]
        plan, silent, long = grow_network(said, GrowthOptions()).nodes
        assert plan.example == "plan the parts"
        assert (silent.name, silent.instructions, silent.example) == ("y", "", "")
        assert long.example == f"{'9' * 400} … (100 more characters)"
        without = grow_network(said, GrowthOptions(with_instructions=False))
        assert {(node.instructions, node.example) for node in without.nodes} == {
            ("", "plan the parts"), ("", ""), ("", long.example),
        }  # fmt: skip

    def test_names_are_the_first_three_words_without_punctuation_at_their_ends(self) -> None:
        said = [episode(("x", "Well, then: go: on"), ("y", "(first) one, two; three"), ("z", "9" * 50))]
        assert [node.name for node in grow_network(said, GrowthOptions()).nodes] == [
            "x: Well, then: go", "y: (first) one, two", f"z: {'9' * 40}",
        ]  # fmt: skip

    def test_tasks_are_of_kinds_that_are_called_by_their_first_words(self) -> None:
        prompts = ("Write a letter.", "Add 1 and 2.", "", "Add 1 and 2.")
        found = grow_network([episode(("x", "zzz"), prompt=prompt) for prompt in prompts], GrowthOptions(0.5))
        assert [(one.name, one.count) for one in found.contexts] == [
            ("Write a letter", 1), ("Add 1 and", 2), ("task", 1),
        ]  # fmt: skip
        assert np.allclose(found.contexts[1].vector, 2 * embed_texts(["Add 1 and 2."], 256)[0], atol=2e-4)
        assert [*found.edges[0].by_context] == ["Add 1 and", "Write a letter", "task"], "in the order of names"

    def test_what_has_no_vector_yet_gets_the_one_of_what_joins_it(self) -> None:
        bare = replace(network("source a 1", "a sink 1", contexts=(Context("k"),)), threshold=0.0)
        found = grow_network([episode(("a", "plan the parts"))], GrowthOptions(), bare)
        for one, text in ((found.nodes[0], "plan the parts"), (found.contexts[0], "Add 1 and 2.")):
            assert (one.count, len(found.nodes), len(found.contexts)) == (2, 1, 1)
            assert np.allclose(one.vector, embed_texts([text], 256)[0], atol=1e-4)

    def test_edges_are_written_in_the_order_of_names(self) -> None:
        edges = grow_network([episode(("y", "zzz"), ("x", "zzz")), episode(("x", "zzz"))], GrowthOptions()).edges
        assert [(edge.start, edge.end) for edge in edges] == [
            (SOURCE, "x: zzz"), (SOURCE, "y: zzz"), ("x: zzz", SINK), ("y: zzz", "x: zzz"),
        ]  # fmt: skip

    def test_vectors_may_be_made_by_a_function_of_ones_own(self) -> None:
        found = grow_network([episode(("x", "plan"), ("x", "zzz"))], GrowthOptions(embed="tests.flow_teams:vectors"))
        assert found.embed == "tests.flow_teams:vectors"
        assert [(node.count, node.vector[:2]) for node in found.nodes] == [(2, (2.0, 0.0))]
        with pytest.raises(ValueError, match=r"'tests.flow_teams:vectors' must give a vector of 8 finite numbers"):
            grow_network([episode(("x", "plan"))], GrowthOptions(dimensions=8, embed="tests.flow_teams:vectors"))

    def test_only_successful_episodes_count(self) -> None:
        failed = replace(episode(("x", "zzz")), status="failed")
        with pytest.raises(ValueError, match="no episode succeeded"):
            grow_network(
                [episode(("x", "zzz"), success=False), episode(("x", "zzz"), success=None), failed], GrowthOptions()
            )

    def test_more_than_a_network_holds_is_said_to_be_that(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr("marft_lab.flows.growth.MAX_NODES", 2)
        with pytest.raises(ValueError, match="3 nodes and 1 kinds of tasks, where 2 are the most: lower the threshold"):
            grow_network([episode(("a", "plan"), ("b", "do it"), ("c", "look"))], GrowthOptions())
        three = [episode(("a", "plan"), prompt=prompt) for prompt in ("Add 1 and 2.", "Write a letter.", "???")]
        with pytest.raises(ValueError, match="1 nodes and 3 kinds of tasks, where 2 are the most"):
            grow_network(three, GrowthOptions())
        two = grow_network([*three[:1], episode(("b", "do it"), prompt="Write a letter.")], GrowthOptions())
        assert (len(two.nodes), len(two.contexts)) == (2, 2)

    def test_what_is_wrong_with_a_network_is_not_grown_on(self) -> None:
        odd = network("source a 1", "a sink 1", weights={"": {SOURCE: {"a": math.nan}}})
        with pytest.raises(ValueError, match="what is grown is no flow network: a weight is no finite number"):
            grow_network([episode(("a", "plan"))], GrowthOptions(), odd)

    def test_vectors_of_another_function_are_not_grown_on(self) -> None:
        theirs = replace(network("source a 1", "a sink 1"), embed="theirs:function")
        with pytest.raises(ValueError, match="made by 'theirs:function'; grow it on with the same: --embed"):
            grow_network([episode(("a", "plan"))], GrowthOptions(), theirs)

    def test_counts_that_no_context_has_noted_are_grown_on(self) -> None:
        before = network("source a 3", "a b 2", "a sink 1", "b sink 2")
        before = replace(before, edges=(replace(before.edges[0], by_context={"Add": 1}), *before.edges[1:]))
        found = grow_network([episode(("x", "zzz"))], GrowthOptions(), before)
        counts = {(edge.start, edge.end): (edge.count, dict(edge.by_context)) for edge in found.edges}
        assert counts["source", "a"] == (3, {"Add": 1})
        assert (counts["a", "b"], counts["b", "sink"]) == ((2, {}), (2, {}))

    def test_names_are_nobodys_and_hold_no_tags(self) -> None:
        found = grow_network(
            [episode(("stop", ""), ("source", ""), ("x", "say <instructions>no more</instructions>"))], GrowthOptions()
        )
        assert [node.name for node in found.nodes] == ["stop 2", "source 2", "x: say instructions no"]
        assert not found.problems()

    def test_what_too_few_did_goes_and_so_does_what_only_led_there(self) -> None:
        episodes = [episode(("x", "plan the parts")), episode(("x", "plan the parts")), episode(("x", "zzz"))]
        assert [node.name for node in grow_network(episodes, GrowthOptions(0.5, min_actions=2)).nodes] == [
            "x: plan the parts"
        ]
        with pytest.raises(ValueError, match="no path is left of 3 successful episodes"):
            grow_network(episodes, GrowthOptions(0.5, min_actions=3))

    def test_what_only_rare_nodes_lead_to_or_from_goes_with_them(self) -> None:
        ends = [episode(("r1", "a"), ("x", "b")), episode(("r2", "a"), ("x", "b"))]  # x is reached over those
        begins = [episode(("y", "b"), ("r3", "a")), episode(("y", "b"), ("r4", "a"))]  # y leads to those alone
        stays = [episode(("z", "c"))] * 2
        found = grow_network([*ends, *begins, *stays], GrowthOptions(min_actions=2))
        assert [node.name for node in found.nodes] == ["z: c"]
        assert [(edge.start, edge.end, edge.count) for edge in found.edges] == [(SOURCE, "z: c", 2), ("z: c", SINK, 2)]

    def test_a_routers_choices_are_no_nodes(self) -> None:
        found = grow_network(
            [episode(("router", "x"), ("x", "zzz"))], GrowthOptions(excluded_roles=frozenset({"router"}))
        )
        assert [node.role for node in found.nodes] == ["x"]
        whole = episode(("x", "plan the parts"), ("x", "zzz"))
        chosen = replace(whole.actions[1], choice=Choice((), 0, np.zeros(0, np.float32)))
        found = grow_network([replace(whole, actions=(whole.actions[0], chosen))], GrowthOptions())
        assert [node.name for node in found.nodes] == ["x: plan the parts"]

    def test_each_step_is_a_path_of_its_own(self) -> None:
        actions = tuple(make_action(role, step=step, text=TEXTS[step]) for step, role in enumerate("xy"))
        found = grow_network([replace(episode(), actions=actions)], GrowthOptions())
        first, second = (node.name for node in found.nodes)
        pairs = {(SOURCE, first), (first, SINK), (SOURCE, second), (second, SINK)}
        assert {(edge.start, edge.end) for edge in found.edges} == pairs

    def test_what_somebody_else_began_is_not_what_an_agent_did(self) -> None:
        begun = replace(make_action("x", text="Begun by y: plan the parts"), response_prefix=12)
        found = grow_network([replace(episode(), actions=(begun,))], GrowthOptions(0.5))
        assert found.nodes == grow_network([episode(("x", "plan the parts"))], GrowthOptions(0.5)).nodes

    def test_a_network_grows_on_by_its_own_threshold(self) -> None:
        first = grow_network([episode(("x", "compute it all"))], GrowthOptions(0.99))
        on = grow_network([episode(("x", "now compute it all"))], GrowthOptions(0.1), first)
        assert (len(on.nodes), on.threshold) == (2, 0.99)
        assert (
            len(
                grow_network(
                    [episode(("x", "now compute it all"))], GrowthOptions(), replace(first, threshold=0.5)
                ).nodes
            )
            == 1
        )

    def test_what_goes_is_skipped_no_more(self) -> None:
        first = grow_network([episode(("x", "plan the parts"), ("x", "zzz"))], GrowthOptions(0.5))
        skips = {"": ("x: plan the parts", "x: zzz")}
        on = grow_network([episode(("x", "plan the parts"))], GrowthOptions(min_actions=2), replace(first, skips=skips))
        assert on.skips == {"": ("x: plan the parts",)}

    @FEW
    @given(many(), st.integers(0, 5))
    def test_growing_on_is_growing_at_once(self, episodes: list[Episode], place: int) -> None:
        growth = GrowthOptions(0.5)
        first, rest = episodes[: 1 + place], episodes[1 + place :]
        on = grow_network(first, growth)
        if any(one.success for one in rest):
            on = grow_network(rest, growth, on)
        assert on == grow_network(episodes, growth)

    @FEW
    @given(many())
    def test_every_successful_episode_is_a_path(self, episodes: list[Episode]) -> None:
        found, solved = grow_network(episodes, GrowthOptions(0.5)), sum(bool(one.success) for one in episodes)
        assert sum(edge.count for edge in found.edges if edge.start == SOURCE) == solved
        assert sum(edge.count for edge in found.edges if edge.end == SINK) == solved
        assert sum(context.count for context in found.contexts) == solved
        for node in found.nodes:  # what comes in goes out
            into = sum(edge.count for edge in found.edges if edge.end == node.name)
            assert into == sum(edge.count for edge in found.edges if edge.start == node.name) == node.count
        assert all(sum(edge.by_context.values()) == edge.count for edge in found.edges)

    @FEW
    @given(st.lists(st.sampled_from(TEXTS), min_size=1, max_size=8))
    def test_joining_equals_the_slow_reference(self, texts: list[str]) -> None:
        sums: list[np.ndarray] = []
        counts: list[int] = []
        for text in texts:
            vector = embed_texts([text], 256)[0].astype(np.float64)
            scores = [float(vector @ other / np.linalg.norm(vector) / np.linalg.norm(other)) for other in sums]
            best = int(np.argmax(scores)) if scores else -1
            if scores and scores[best] >= 0.5:
                sums[best], counts[best] = sums[best] + vector, counts[best] + 1
            else:
                sums.append(vector)
                counts.append(1)
        found = grow_network([episode(*(("x", text) for text in texts))], GrowthOptions(0.5))
        assert [node.count for node in found.nodes] == counts
        assert np.allclose([node.vector for node in found.nodes], sums, atol=1e-3)


class TestLikeness:
    def test_what_has_no_vector_is_like_nothing(self) -> None:
        assert find_nearest(np.ones(4), [(), (0.0,) * 4], 0.1) is None

    def test_what_is_nearest(self) -> None:
        table = [(1.0, 0.0), (0.0, 1.0), (1.0, 0.0)]
        assert find_nearest(np.array([0.9, 0.1]), table, 0.5) == 0
        assert find_nearest(np.array([-1.0, 0.0]), table, 0.5) is None
        assert find_nearest(np.array([1.0, 0.0]), [], 0.0) is None
        assert cosine_similarity(np.zeros(2), (1.0, 0.0)) == 0.0
        assert find_nearest(np.array([3.0, 4.0]), [(1.0, 0.0)], 0.6) == 0, "as alike as it has to be"

    def test_a_sum_of_vectors_is_written_down_in_four_places(self) -> None:
        assert add_vectors((1.0, 0.5), np.array([1 / 3, 2 / 3])) == (1.3333, 1.1667)

    def test_cosines_have_six_places(self) -> None:
        assert cosine_similarity(np.array([1.0, 0.0]), (1.0, 7.0)) == 0.141421

    def test_a_task_that_is_like_none_has_no_context(self) -> None:
        found = network("source a 1", "a sink 1", contexts=contexts("Add the numbers 1 and 2.", "Write a letter."))
        assert match_context(found, "Add the numbers 3 and 4.") == "Add the numbers 1 and 2."
        assert match_context(found, "???") == ANY


class TestChoosing:
    @FEW
    @given(networks(), st.sampled_from((ANY, "c")), st.integers(1, 4))
    def test_all_walks_together_are_certain(self, found: FlowNetwork, context: str, most: int) -> None:
        walks = list(paths(found, context, most))
        assert math.fsum(math.exp(path_log_prob(found, context, one, most)) for one in walks) == pytest.approx(1.0)

    @FEW
    @given(networks(), st.sampled_from((ANY, "c")), st.integers(0, 50))
    def test_the_gradient_of_a_walk_is_its_finite_difference(self, found: FlowNetwork, context: str, seed: int) -> None:
        path = sample_path(found, context, 3, 1.0, Random(seed))
        slopes = log_prob_gradient(found, context, path, 3)
        for (row, start, end), slope in slopes.items():
            high, low = (path_log_prob(moved(found, row, start, end, by), context, path, 3) for by in (1e-5, -1e-5))
            assert slope == pytest.approx((high - low) / 2e-5, abs=1e-6)

    @FEW
    @given(networks())
    def test_reinforce_climbs_what_is_expected(self, found: FlowNetwork) -> None:
        """Σ π(path) R ∇log π(path) is the gradient of the expected reward."""

        def expected(one: FlowNetwork) -> float:
            return math.fsum(math.exp(path_log_prob(one, "c", path, 3)) * earns(path) for path in paths(one, "c", 3))

        whole = Counter[tuple[str, str, str]]()
        for path in paths(found, "c", 3):
            for key, slope in log_prob_gradient(found, "c", path, 3).items():
                whole[key] += math.exp(path_log_prob(found, "c", path, 3)) * earns(path) * slope  # type: ignore[assignment]
        for key, slope in list(whole.items())[:4]:
            difference = expected(moved(found, *key, 1e-5)) - expected(moved(found, *key, -1e-5))
            assert slope == pytest.approx(difference / 2e-5, abs=1e-6)

    @FEW
    @given(networks(), st.integers(0, 99))
    def test_no_node_comes_twice(self, found: FlowNetwork, seed: int) -> None:
        path = sample_path(found, "c", 2, 1.0, Random(seed))
        assert len(set(path)) == len(path) <= 2
        assert path in set(paths(found, "c", 2))

    def test_walks_come_as_often_as_they_should(self) -> None:
        found = network("source a 3", "source b 1", "a b 1", "a sink 1", "b sink 1")
        counts = Counter(sample_path(found, ANY, 3, 1.0, Random(seed)) for seed in range(4000))
        for path, count in counts.items():
            chance = math.exp(path_log_prob(found, ANY, path, 3))
            assert count / 4000 == pytest.approx(chance, abs=4 * math.sqrt(chance * (1 - chance) / 4000))

    def test_the_logit_of_an_edge_is_of_its_counts_and_of_the_weights_that_there_are(self) -> None:
        found = network("source a 3", "source b 1", "a sink 3", "b sink 1")
        first = replace(found.edges[0], by_context={"c": 2})
        found = replace(found, edges=(first, *found.edges[1:]))
        found = replace(found, weights={ANY: {SOURCE: {"a": 0.5}}, "c": {SOURCE: {"b": -0.25}}})
        assert edge_logits(found, ANY, SOURCE) == pytest.approx({"a": math.log(3.75) + 0.5, "b": math.log(1.25)})
        assert edge_logits(found, "c", SOURCE) == pytest.approx({"a": math.log(2.75) + 0.5, "b": math.log(0.25) - 0.25})
        assert edge_logits(found, "c", SOURCE, ["a"]) == pytest.approx({"b": math.log(0.25) - 0.25})

    def test_chances_sharpen_as_the_temperature_falls(self) -> None:
        logits = {"a": 1000.0, "b": 1000.0 + math.log(3)}
        assert edge_probabilities(logits) == pytest.approx({"a": 0.25, "b": 0.75})
        assert edge_probabilities(logits, 0.5) == pytest.approx({"a": 0.1, "b": 0.9})
        assert edge_probabilities(logits, 2.0)["b"] == pytest.approx(math.sqrt(3) / (1 + math.sqrt(3)))
        assert edge_probabilities({**logits, "c": logits["b"]}, 0.0) == {"a": 0.0, "b": 1.0, "c": 0.0}

    def test_edges_of_its_own_context_count_for_more(self) -> None:
        found = network("source a 1", "source b 1", "a sink 1", "b sink 1")
        edges = tuple(replace(edge, by_context={"c": 1} if edge.end == "b" else {"d": 1}) for edge in found.edges)
        assert edge_probabilities(edge_logits(replace(found, edges=edges), "c", SOURCE)) == pytest.approx(
            {"a": 0.25, "b": 0.75}
        )

    @FEW
    @given(st.lists(st.tuples(st.sampled_from("cd"), st.floats(-3, 3), st.integers(0, 3)), min_size=1, max_size=8))
    def test_advantages_leave_one_episode_out(self, earned: list[tuple[str, float, int]]) -> None:
        walks = [PathReturn(context, (), value, episode) for context, value, episode in earned]
        for one, advantage in zip(walks, compute_advantages(walks), strict=True):
            others = [w.episode_return for w in walks if w.episode != one.episode and w.context == one.context]
            assert advantage == pytest.approx(
                one.episode_return - sum(others) / len(others) if others else 0.0, abs=1e-9
            )

    def test_what_earned_more_becomes_likelier_and_other_contexts_stay_what_they_were(self) -> None:
        found = network("source a 1", "source b 1", "a sink 1", "b sink 1")
        better = reinforce_step(found, [PathReturn("c", ("a",), 1.0, 0), PathReturn("c", ("b",), 0.0, 1)], 1.0, 3)
        assert path_log_prob(better, "c", ("a",), 3) > path_log_prob(found, "c", ("a",), 3)
        assert better.weights["c"] == better.weights[ANY]  # all walks were of one context
        alone = reinforce_step(found, [PathReturn("c", ("a",), 1.0, 0), PathReturn("d", ("b",), 0.0, 1)], 1.0, 3)
        assert alone.weights == {}  # each is alone in its context, and there is nothing to compare it with

    def test_a_step_adds_the_rate_times_the_mean_of_advantage_and_slope(self) -> None:
        found = network("source a 1", "source b 1", "a sink 1", "b sink 1")  # slopes of 1 - 1/2 and of -1/2
        better = reinforce_step(found, [PathReturn(ANY, ("a",), 1.0, 0), PathReturn(ANY, ("b",), 0.0, 1)], 2.0, 3)
        assert better.weights[ANY][SOURCE] == pytest.approx({"a": 1.0, "b": -1.0})

    def test_skipped_nodes_do_not_act_unless_nobody_else_would(self) -> None:
        found = network("source a 1", "a b 1", "b e 1", "e sink 1", skips={"c": ("a", "b", "e")})
        assert active_nodes(found, "d", ("a", "b", "e")) == ("a", "b", "e")
        assert active_nodes(found, "c", ("a", "b", "e")) == ("e",)


def earns(path: tuple[str, ...]) -> float:
    return {"a": 1.0, "b": -0.5, "c": 2.0}.get(path[-1] if path else "", 0.3) + len(path)


def moved(found: FlowNetwork, row: str, start: str, end: str, by: float) -> FlowNetwork:
    weights = {one: {a: dict(ends) for a, ends in starts.items()} for one, starts in found.weights.items()}
    ends = weights.setdefault(row, {}).setdefault(start, {})
    ends[end] = ends.get(end, 0.0) + by
    return replace(found, weights=weights)


def test_a_contexts_weights_move_by_the_mean_of_its_own_walks() -> None:
    seen = {"c": 1, "d": 1}
    edges = (Edge(SOURCE, "a", 1, seen), Edge(SOURCE, "b", 1, seen), Edge("a", SINK), Edge("b", SINK))
    net = FlowNetwork((Node("a", "x"), Node("b", "x")), edges, (Context("c"), Context("d")))
    few = [PathReturn("c", ("a",), 1.0, 0), PathReturn("c", ("b",), 0.0, 1)]
    other = [PathReturn("d", ("a",), 0.0, number) for number in range(2, 8)]
    alone, among = reinforce_step(net, few, 1.0, 4), reinforce_step(net, [*few, *other], 1.0, 4)
    assert among.weights["c"][SOURCE] == pytest.approx(alone.weights["c"][SOURCE])
    assert among.weights[""][SOURCE]["a"] == pytest.approx(alone.weights[""][SOURCE]["a"] / 4)


def test_a_network_of_other_dimensions_is_grown_on_in_its_own() -> None:
    first = grow_network([episode(("x", "plan the parts"))], GrowthOptions(0.5, dimensions=64))
    found = grow_network([episode(("x", "plan the parts"))], GrowthOptions(0.5), first)
    assert (found.dimensions, len(found.nodes), len(found.nodes[0].vector)) == (64, 1, 64)
