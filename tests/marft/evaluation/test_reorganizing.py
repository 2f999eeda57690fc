"""A trained team's agents in another team: seats, handoffs that are closed up, records, and what is refused."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

import marft
from marft.agents.organizations import remove_roles
from marft.config import RunSettings
from marft.config.load import other_overrides
from marft.config.team_changes import TeamChange, apply_team_change, describe_team_change, read_team_change
from marft.evaluation.comparison import compare_evaluations
from marft.runs.run_folder import RunFolder
from tests.marft.cli.test_python import BOARD, as_in_a_notebook
from tests.marft.evaluation.test_comparison import over, saved
from tests.marft.evaluation.test_gates import BEFORE
from tests.marft.evaluation.test_kept_evaluations import lengths
from tests.marft.evaluation.test_scenarios import command
from tests.nights import some
from tests.satellites import NEEDS_LAB
from tests.sources import ROOT

ROLES = "abcdef"
EDGES = st.sets(st.tuples(st.sampled_from(ROLES), st.sampled_from(ROLES)), max_size=14)


LEARNS_WITH = {
    "consulting": {"helpers": {"verify": {"policy": "judge"}}, "agents": ["b"], "anneal_end": 9},
    "prompt_optimization": {"proposer": {"name": "gradient", "policy": "judge"}, "agents": ["b"]},
    "dyna": {"input_roles": ["b"]},
}


@pytest.mark.parametrize(
    "part", ["consulting", pytest.param("prompt_optimization", marks=NEEDS_LAB), pytest.param("dyna", marks=NEEDS_LAB)]
)
def test_what_is_there_for_learning_alone_is_left_behind(part: str) -> None:
    """It names agents that may be gone, and policies that no agent has."""
    own = {"policies": {**{role: {"model": "base", "lora": {"rank": 2, "alpha": 4}} for role in "abc"},
                        "judge": {"model": "base", "train": "frozen"}}}  # fmt: skip
    algorithm = {"algorithm": {"name": "aipo" if part == "consulting" else "marft"}}
    whole = {key: value for key, value in own.items() if part != "dyna"}
    run = chain("a", "b", "c", **whole, **algorithm, **{part: LEARNS_WITH[part]})
    other = apply_team_change(run, TeamChange("pair", {"agents": [{"role": "a"}, {"role": "c"}]}))
    assert [agent.role for agent in other.agents] == ["a", "c"]
    assert other.consulting is None
    assert part not in {section.key for section in other.sections}
    assert set(other.policies) == {"a", "c"}


def chain(*roles: str, **more: Any) -> RunSettings:
    agents = [{"role": role, "policy": role, "instructions": f"I am {role}."} for role in roles]
    return marft.load_recipe(
        {
            "name": "chain", "models": {"base": {"path": "tiny"}},
            "policies": {role: {"model": "base", "lora": {"rank": 2, "alpha": 4}} for role in roles},
            "agents": [*agents[:-1], {**agents[-1], "answers": True}],
            "environment": {"name": "reasoning_gym", "dataset": "chain_sum"}, **more,
        }
    )  # fmt: skip


def seats(*roles: str, **like: str) -> list[dict[str, str]]:
    return [{"role": role} for role in roles] + [{"role": role, "like": whom} for role, whom in like.items()]


def reached(sees: Mapping[str, Sequence[str]], start: str) -> set[str]:
    """All that an agent is told of, through whomever."""
    found, left = set[str](), [*sees.get(start, ())]
    while left:
        role = left.pop()
        if role not in found:
            found.add(role)
            left += sees.get(role, ())
    return found


@given(EDGES, st.sets(st.sampled_from(ROLES), max_size=4))
def test_once_agents_are_gone_everybody_is_told_of_whom_they_were_told_before(
    edges: set[tuple[str, str]], gone: set[str]
) -> None:
    sees = {role: tuple(sorted(b for a, b in edges if a == role and b != a)) for role in ROLES}
    after = remove_roles(sees, sorted(gone))
    assert set(after) == set(ROLES) - gone
    for role in after:
        assert not gone & set(after[role])
        assert role not in after[role]
        assert len(set(after[role])) == len(after[role])
        assert reached(after, role) - {role} == reached(sees, role) - gone - {role}


def test_a_seat_begins_as_the_trained_agent_of_its_role_or_as_whom_it_is_like() -> None:
    run = chain("a", "b", "c")
    found = apply_team_change(run, TeamChange("more", {"agents": [*seats("a", d="b"), {"role": "c", "guidance": "!"}]}))
    assert [(agent.role, agent.policy, agent.answers) for agent in found.agents] == [
        ("a", "a", False), ("d", "b", False), ("c", "c", True),
    ]  # fmt: skip
    assert [agent.instructions for agent in found.agents] == ["I am a.", "I am b.", "I am c."]
    assert found.agents[2].guidance == "!"
    assert found.team == run.team
    changed = describe_team_change(run, found, TeamChange("more", {"agents": [{"role": "a"}]}))
    assert (changed["added"], changed["removed"]) == (["d"], ["b"])


def test_what_nobody_uses_any_more_is_left_out_and_one_alone_answers() -> None:
    found = apply_team_change(chain("a", "b"), TeamChange("one", {"agents": seats("a")}))
    assert (list(found.policies), found.trained_policies, found.agents[0].answers) == (["a"], ("a",), True)


def test_tools_and_models_that_nobody_uses_any_more_are_left_out_and_readers_of_remote_ones_stay() -> None:
    double, remote = {"name": "function", "call": "marft.examples.orders:multiply"}, {"path": "gpt-x"}
    run = marft.load_recipe(
        chain("a", "b", "c"),
        {
            "tools": {"double": double, "triple": double}, "agents.a.tools": ["double"], "agents.b.tools": ["triple"],
            "models.other": {"path": "tiny"}, "models.unread": {"path": "tiny"}, "policies.b.model": "unread",
            "models.remote": {**remote, "endpoint": {"url": "http://127.0.0.1:1/v1", "local_model": "other"}},
            "policies.c": {"model": "remote", "train": "frozen"},
        },
    )  # fmt: skip
    found = apply_team_change(run, TeamChange("pair", {"agents": seats("a", "c")}))
    assert (set(found.tools), set(found.models)) == ({"double"}, {"base", "other", "remote"})


def test_what_agents_read_of_each_other_is_that_of_the_new_team() -> None:
    run = chain("a", "b", channel={"name": "truncated", "max_words": 7})
    into = TeamChange("short", {"channel": {"name": "truncated", "max_words": 3}})
    assert apply_team_change(run, TeamChange("one", {"agents": seats("a")})).channel == run.channel
    found = apply_team_change(run, into)
    assert found.channel.model_dump() == {**run.channel.model_dump(), "max_words": 3}
    assert describe_team_change(run, found, into)["channel"]["max_words"] == 3


def test_what_was_given_in_python_is_there_in_the_other_team() -> None:
    board = as_in_a_notebook(BOARD, "Board")
    found = apply_team_change(chain("a", "b", environment=board), TeamChange("one", {"agents": seats("a")}))
    assert type(found.environment) is board


@pytest.mark.parametrize(
    ("team", "left"),
    [
        ({"organization": "graph", "visible": {"b": ["a"], "c": ["b"]}}, {"visible": {"c": ("a",)}}),
        ({"organization": "debate", "neighbors": {"a": ["b"], "b": ["c"]}}, {"neighbors": {"a": ("c",)}}),
        ({"organization": "debate", "judge": "b"}, {"judge": "", "neighbors": "all"}),
        ({"organization": "hierarchical", "planner": "a", "workers": ["b", "c"]}, {"workers": ("c",)}),
    ],
)  # fmt: skip
def test_handoffs_of_agents_that_are_gone_are_closed_up(team: dict[str, Any], left: dict[str, Any]) -> None:
    found = apply_team_change(chain("a", "b", "c", team=team), TeamChange("less", {"agents": seats("a", "c")}))
    assert {key: getattr(found.team, key) for key in left} == left
    assert found.team.name == team["organization"]


def test_a_team_without_an_organization_changes_the_trained_one_and_another_takes_its_place() -> None:
    run = chain("a", "b", team={"organization": "debate", "rounds": 3, "judge": "b"})
    same = apply_team_change(run, TeamChange("x", {"team": {"neighbors": "ring"}})).team.model_dump()
    assert (same["organization"], same["rounds"], same["judge"], same["neighbors"]) == ("debate", 3, "b", "ring")
    other = apply_team_change(run, TeamChange("x", {"team": {"organization": "parallel"}}))
    assert other.team.name == "parallel"


def test_it_is_known_by_what_it_asks_for_whatever_its_weights_are() -> None:
    into = TeamChange("star", {"team": {"organization": "parallel"}})
    one, two = (
        describe_team_change(run, apply_team_change(run, into), into)
        for run in (chain("a", "b"), chain("a", "b", seed=5))
    )
    assert one == two
    assert one["organization"] == ["chain", "parallel"]
    asked = marft.load_recipe(chain("a", "b"), {"team": "parallel"})
    unnamed = describe_team_change(chain("a", "b"), asked, None)
    assert unnamed["name"] == f"parallel-{unnamed['digest'][:6]}"
    colder = marft.load_recipe(chain("a", "b"), {"agents.a.sampling.temperature": 0.5})
    assert describe_team_change(chain("a", "b"), colder, None) == {}, "how agents sample is no other team"


def test_teams_that_ask_for_other_words_or_other_policies_are_not_one() -> None:
    run = chain("a", "b")
    asked: list[dict[str, Any]] = [
        {"agents": [{"role": "a", "like": "b", "answers": False}, {"role": "b"}]},
        {"agents": [{"role": "a", "policy": "b"}, {"role": "b"}]},
        {"agents": [{"role": "a", "policy": "b", "instructions": "Own."}, {"role": "b"}]},
    ]
    found = [asked_of(run, tables) for tables in asked]
    assert [[seat["policy"] for seat in one["agents"]] for one in found] == [["b", "b"]] * 3
    assert len({one["digest"] for one in found}) == 3


@pytest.mark.parametrize(
    ("tables", "message"),
    [
        ({}, "changes nothing"),
        ({"tema": {}}, "tema is no part of a team; did you mean 'team'?"),
        ({"team": "debate"}, "team is a table"),
        ({"agents": []}, "a list of tables, each with a role"),
        ({"agents": [{"like": "a"}]}, "a list of tables, each with a role"),
        ({"agents": [{"role": "a", "like": ["a"]}]}, "a list of tables, each with a role"),
        ({"agents": seats("a", "bb")}, "agents.bb: nobody trained is called 'bb'"),
        ({"agents": seats("a", "b", d="z")}, "agents.d: nobody trained is called 'z'"),
        ({"agents": [{"role": "b", "instuctions": "?"}]}, "instuctions"),
        ({"agents": seats("b", "a", "a")}, "2 agents are called 'a'"),
        ({"agents": seats("a", d="a")}, "nobody answers"),
        ({"team": {"organization": "debate", "judge": "z"}}, "no agent is called 'z'"),
        ({"team": {"organization": "chain"}}, "is the team of chain as it is"),
    ],
)
def test_what_makes_no_team_is_refused_in_words(tables: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=re.escape(message)):
        asked_of(chain("a", "b"), tables)


def asked_of(run: RunSettings, tables: dict[str, Any]) -> dict[str, Any]:
    """What becomes of a run's team, as it is recorded."""
    into = TeamChange("x", tables)
    return describe_team_change(run, apply_team_change(run, into), into)


def test_a_file_is_called_as_it_is_and_what_is_none_is_refused(tmp_path: Path) -> None:
    (tmp_path / "tree.toml").write_text('[team]\norganization = "parallel"\n', encoding="utf-8")
    assert read_team_change(tmp_path / "tree.toml").name == "tree"
    for text in ("[team", "\0"):
        (tmp_path / "bad.toml").write_text(text, encoding="utf-8")
        with pytest.raises(ValueError, match="cannot read the team"):
            read_team_change(tmp_path / "bad.toml")
    with pytest.raises(ValueError, match="cannot read the team"):
        read_team_change(tmp_path / "none.toml")


def test_overrides_of_other_tables_stay() -> None:
    words = ["--team", "debate", "--seed", "1", "--agents.a.answers=true", "--device", "cpu"]
    assert other_overrides(words, ("team", "agents")) == ["--seed", "1", "--device", "cpu"]


TREE = '[[agents]]\nrole = "first"\nlike = "reasoner"\n[[agents]]\nrole = "actor"\n[team]\norganization = "parallel"\n'
SHORT = ("--checkpoint", "base", "--mode", "greedy", "--tasks", "3")


def test_what_was_changed_is_recorded_and_kept_apart(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder, tree = RunFolder.create(lengths(tmp_path / "runs")), tmp_path / "tree.toml"
    tree.write_text(TREE, encoding="utf-8")
    assert command("eval", folder.path, *SHORT) == 0
    before = (folder.evaluations / "base-greedy.json").read_bytes()
    assert command("eval", folder.path, *SHORT, "--team-file", tree) == 0
    assert "tree" in capsys.readouterr().out
    assert command("eval", folder.path, *SHORT, "--team", "parallel") == 0
    assert (folder.evaluations / "base-greedy.json").read_bytes() == before
    assert len(folder.read_evaluations()) == 1, "what it did in another team is no evaluation of it as it was trained"
    others: list[Any] = [one["reorganized"] for one in folder.read_evaluations(scenarios=True) if one["reorganized"]]
    kept = {other["name"]: other for other in others}
    unnamed = next(name for name in kept if name != "tree")
    assert unnamed.startswith("parallel-")
    assert (folder.evaluations / f"base-greedy-as-{unnamed}.parquet").is_file()
    assert (kept["tree"]["added"], kept["tree"]["removed"]) == (["first"], ["reasoner"])
    assert [seat["policy"] for seat in kept["tree"]["agents"]] == ["reasoner", "actor"]
    found = marft.evaluate(folder.path, checkpoints="base", modes="greedy", tasks=3, reorganized=tree)
    assert [one.reorganized for one in found] == [kept["tree"]]
    capsys.readouterr()
    assert command("eval", folder.path, *SHORT, "--team-file", tree) == 0
    assert "1 of 1 evaluations were kept" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (("--team-file", "none.toml"), "cannot read the team of none.toml"),
        pytest.param(
            ("--team-file", "x.toml", "--suite", "safety"), "--team-file is of held-out tasks", marks=NEEDS_LAB
        ),
        pytest.param(
            ("--suite", "safety", "--team", "parallel"), "as the team that it was trained as", marks=NEEDS_LAB
        ),
    ],
)
def test_what_would_mix_teams_is_refused(
    words: tuple[str, ...], message: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = RunFolder.create(lengths(tmp_path / "runs"))
    assert command("eval", folder.path, *words) == 2
    assert message in " ".join(capsys.readouterr().err.split())


def evaluated(name: str = "", digest: str = "", **more: Any) -> dict[str, Any]:
    team = {"name": name, "digest": digest or name} if name else {}
    return saved(BEFORE, **({"reorganized": team} if team else {}), **more)


def test_comparisons_name_the_team_and_never_mix_two_of_them() -> None:
    as_tree = over([evaluated(), evaluated("tree")], [evaluated("tree")])
    assert list(as_tree.changes) == ["greedy as tree"]
    with pytest.raises(ValueError, match=r"runs/a as it was trained and runs/b as tree; .* --team-name tree"):
        over([evaluated()], [evaluated("tree")])
    with pytest.raises(ValueError, match="runs/a as tree and runs/b as tree"):
        over([evaluated("tree", "1")], [evaluated("tree", "2")])


def test_a_team_is_held_against_itself_as_another_where_that_is_asked_for() -> None:
    both = [evaluated(), evaluated("tree"), evaluated("star")]
    found = compare_evaluations(both, both, ("runs/a", "runs/a"), after_as="tree")
    assert list(found.changes) == ["greedy as tree"]
    with pytest.raises(ValueError, match="runs/a was not evaluated as 'ring', but as star, tree"):
        compare_evaluations(both, both, ("runs/a", "runs/a"), after_as="ring")


class TestTheBenchmark:
    @pytest.fixture(autouse=True)
    def benchmarks(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.syspath_prepend(ROOT / "benchmarks")

    def test_every_form_of_a_chain_can_play_and_trains_nothing_new(self) -> None:
        import reorganization
        from studies.populations import team_of

        run = team_of(4, [])
        for form, tables in some(list(reorganization.forms(4).items()), 4):
            found = apply_team_change(run, TeamChange(form, tables))
            assert {agent.policy for agent in found.agents} <= set(run.policies)
            assert found.agents[-1].role == "actor"
            assert "agents" not in tables or len(found.agents) == int(form.split()[0])

    def test_a_row_is_of_the_seeds_that_both_sides_have(self) -> None:
        import reorganization

        def solved(*tasks: float) -> dict[str, float]:
            return {f"t{n}": won for n, won in enumerate(tasks)}

        runs = {
            "4/chain/0": {"trained": solved(1, 1, 1, 1), "untuned": solved(0, 0, 1, 1)},
            "4/star/0": {"trained": solved(1, 1, 0, 0), "untuned": solved(0, 0, 0, 0)},
            "4/star/1": {"trained": solved(0, 0, 0, 0), "untuned": solved(0, 0, 0, 0)},
        }
        cells = reorganization.line(runs, "star", 4).strip("| ").split(" | ")
        assert cells[:7] == ["4", "star", "1", "0.0%", "50.0%", "50.0% to 50.0%", "50%"]
        assert cells[7].startswith("-50.0 (")
        assert cells[8].startswith("+50.0 (")
