"""Instructions that are learned: proposals, lineage, and runs that go on to the bit."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from marft.agents.agents import Agent
from marft.agents.game import Attempt
from marft.agents.team import Team
from marft.common.prompt_history import PromptHistory, PromptScore, PromptVersion
from marft.common.types import Action, ActionKey, AgentProfile, Episode, SamplingParams, Task
from marft.config.helpers import without_helpers
from marft.config.run import RunSettings
from marft.runs.state import LINEAGE_ADAPTER
from marft_lab.planning.workload import compute_workload
from marft_lab.prompt_optimization.prompts import AttemptTranscript, parse_instructions, unique_marker
from marft_lab.prompt_optimization.proposals import Proposal, ProposalRequest, Proposer, rank_versions
from marft_lab.prompt_optimization.proposers.edits import GeneticSentenceProposer, cross_over, mutate, split_sentences
from marft_lab.prompt_optimization.proposers.evolution import EvolutionProposer
from marft_lab.prompt_optimization.proposers.gradient import TextGradientProposer
from marft_lab.prompt_optimization.search import PromptSearch
from marft_lab.prompt_optimization.settings import PromptOptimizerSettings
from marft_serve.serving.settings import build_served_table
from tests.helpers import settings

POOL = ("Add.", "Be brief.", "Say so.")
TABLE = {"every": 1, "candidates": 2, "tasks": 4, "proposer": {"name": "edits", "sentences": list(POOL)}}


def version(number: int, text: str = "Add.", low: float | None = None, **fields: Any) -> PromptVersion:
    found = None if low is None else PromptScore(10, low, low, low, 0.0, 0.0, 0.0)
    return PromptVersion("actor", number, text, worth=found, **fields)


def asked(
    versions: Sequence[PromptVersion], says: Sequence[str] = (), count: int = 4, **fields: Any
) -> tuple[ProposalRequest, list[str]]:
    heard, replies = list[str](), iter(says)

    def ask(_: str, question: str, __: SamplingParams) -> str:
        heard.append(question)
        return next(replies, "")

    given = {"failed": [AttemptTranscript("1 + 1?", (("actor", "three"),))], "solved": [], **fields}
    rng = np.random.default_rng(0)
    return ProposalRequest("actor", versions[0], versions, count=count, rng=rng, ask=ask, **given), heard


class TestLineage:
    def test_an_accepted_version_is_told_and_a_refused_one_is_only_known(self) -> None:
        lineage = PromptHistory.start({"actor": "Act.", "critic": "Judge."})
        after = lineage.add_versions(
            [replace(version(1, "No.", parents=(0,)), accepted=False), version(2, "Yes.", parents=(0,))]
        )
        assert [one.instructions for one in after.current_versions()] == ["Yes.", "Judge."]
        assert [one.number for one in after.ancestors("actor")] == [0, 2]
        assert len(after.versions) == 4
        assert not after.problems()

    def test_a_run_that_goes_back_is_told_what_it_was_and_knows_what_it_tried(self) -> None:
        first = PromptHistory.start({"actor": "Act."})
        second = first.add_versions([version(1, "Add.", parents=(0,))])
        back = second.add_versions([version(2, "Up.", parents=(1,))]).roll_back(second)
        assert back.current_version("actor").instructions == "Add."
        assert back.roll_back(None).current_version("actor").instructions == "Act."
        assert len(back.versions) == 3

    def test_it_reads_back_as_it_was_written(self) -> None:
        lineage = PromptHistory.start({"actor": "Act."}).add_versions(
            [version(1, low=0.1 + 0.2, parents=(0,), how="mutation")]
        )
        assert LINEAGE_ADAPTER.validate_json(LINEAGE_ADAPTER.dump_json(lineage)) == lineage

    @pytest.mark.parametrize(
        "spoiled",
        [
            {"current": {"actor": 3}},
            {"current": {}},
            {"versions": (version(1),)},
            {"versions": (version(0), version(1, parents=(1,)))},
        ],
    )
    def test_what_is_no_lineage_is_refused(self, spoiled: dict[str, Any]) -> None:
        lineage = replace(PromptHistory.start({"actor": "Act."}), **spoiled)
        with pytest.raises(ValueError, match="version"):
            LINEAGE_ADAPTER.validate_json(LINEAGE_ADAPTER.dump_json(lineage))

    def test_the_current_version_leads_and_others_follow_by_the_lower_end_of_their_worth(self) -> None:
        versions = [version(0), version(1, low=0.2), version(2, low=0.4), version(3, low=0.1)]
        assert [one.number for one in rank_versions(versions, versions[3])] == [3, 2, 1, 0]


class TestEdits:
    @given(text=st.lists(st.sampled_from(["A.", "B!", "C?"]), unique=True, max_size=3), seed=st.integers(0, 99))
    def test_a_mutation_is_one_edit(self, text: list[str], seed: int) -> None:
        before, after = set(text), mutate(tuple(text), POOL, np.random.default_rng(seed))
        assert len(before ^ set(after)) <= 2
        assert len(set(after)) == len(after)
        assert set(after) <= before | set(POOL)

    @given(seed=st.integers(0, 99))
    def test_a_crossing_has_the_beginning_of_one_and_the_end_of_the_other(self, seed: int) -> None:
        first, second = ("A.", "B."), ("C.", "D.")
        child = cross_over(first, second, np.random.default_rng(seed))
        assert child in [first[:n] + second[m:] for n in range(3) for m in range(3)]

    @given(st.lists(st.sampled_from(POOL), max_size=3))
    def test_sentences_join_to_what_they_were_split_from(self, sentences: list[str]) -> None:
        assert " ".join(split_sentences(" ".join(sentences))) == " ".join(sentences)

    def test_proposals_are_new_and_name_what_they_were_made_of(self) -> None:
        versions = [version(0, "Act."), version(1, "Add.", low=0.5)]
        told, heard = asked(versions, count=8)
        found = GeneticSentenceProposer(sentences=POOL, max_sentences=2).propose(told)
        texts = [one.instructions for one in found]
        assert len(set(texts)) == len(texts) == 8
        assert not {"Act.", "Add."} & set(texts)
        assert all(
            len(split_sentences(text)) <= 2 and set(one.parents) <= {0, 1}
            for one, text in zip(found, texts, strict=True)
        )
        assert not heard


class TestAskingPolicies:
    def test_a_gradient_is_asked_for_by_what_failed_and_applied_by_a_second_question(self) -> None:
        told, heard = asked([version(0, "Act.")], ["It adds wrong.", "So: <instructions>Add right.</instructions>"], 1)
        assert TextGradientProposer(policy="critic").propose(told) == [Proposal("Add right.", (0,), "gradient")]
        assert "1 + 1?" in heard[0]
        assert "three" in heard[0]
        assert "It adds wrong." in heard[1]
        assert all("Act." in question for question in heard)

    def test_without_failures_there_is_no_gradient(self) -> None:
        told, heard = asked([version(0)], failed=[])
        assert TextGradientProposer(policy="critic").propose(told) == []
        assert not heard

    def test_earlier_versions_are_shown_with_what_they_were_worth(self) -> None:
        told, heard = asked([version(0, "Act."), version(1, "Shout.", low=0.25)], ["Bad.", ""], 1)
        TextGradientProposer(policy="critic").propose(told)
        assert "solved 25%" in heard[1]
        assert "Shout." in heard[1]

    def test_evolution_shows_one_version_or_two_and_names_them_as_parents(self) -> None:
        told, heard = asked(
            [version(0, "Act."), version(1, "Add.", low=0.5)], ["<instructions>Sum.</instructions>"] * 9, 9
        )
        for one, question in zip(EvolutionProposer(policy="critic").propose(told), heard, strict=True):
            assert {("Act.", "Add.")[parent] for parent in one.parents} == {
                t for t in ("Act.", "Add.") if t in question
            }
            assert one.kind == ("crossover" if len(one.parents) == 2 else "mutation")

    @given(st.lists(st.text(max_size=20) | st.sampled_from(["mark1", "mark2 mark1"]), max_size=5))
    def test_what_is_read_cannot_end_the_place_it_stands_in(self, texts: list[str]) -> None:
        assert not any(unique_marker(texts) in text for text in texts)

    def test_a_reply_without_tags_proposes_nothing(self) -> None:
        assert parse_instructions("Add right.") == ""


class Planted:
    """Plays a world in which a team solves a task by chance that its instructions decide."""

    def __init__(self, run: RunSettings, chances: dict[tuple[str, str], float]) -> None:
        self.run, self.chances, self.excluded_tasks, self.played = run, chances, dict[str, str](), 0
        self.recipe = Team(tuple(Agent(a.profile, a.policy) for a in run.agents), run.team)  # type: ignore[arg-type]
        self.team = self.recipe

    def set_prompt_versions(self, versions: Sequence[PromptVersion]) -> None:
        self.team = self.recipe.with_prompt_versions(
            versions, {agent.role: agent.instructions for agent in self.run.agents}
        )

    def version(self, _: str) -> int:
        return 7

    def ask(self, *_: object) -> tuple[str, int]:
        return "<instructions>Good.</instructions>", 8

    def play(self, attempts: Sequence[Attempt], team: Team | None = None, *_: object) -> list[Episode]:
        self.played += len(attempts)
        told = tuple(agent.profile.instructions for agent in (team or self.team).agents)
        return [self._episode(attempt, self.chances.get(told, 0.0)) for attempt in attempts]  # type: ignore[call-overload]

    def _episode(self, attempt: Attempt, chance: float) -> Episode:
        nothing, key = np.zeros(2, np.int32), ActionKey(attempt.stream, attempt.task.id, 0, 0, "actor", 0)
        action = Action(
            key, "actor", 0, (), nothing, nothing, np.zeros(2, np.uint8), np.zeros(2, np.float32), "", "stop"
        )
        success = np.random.default_rng(int(attempt.task.id)).random() < chance
        return Episode(attempt.task, attempt.stream, 0, (action,), "terminated", success=bool(success))


def tuner(chances: dict[tuple[str, str], float], **table: Any) -> tuple[PromptSearch, Planted]:
    run = settings(prompt_optimization={**TABLE, "tasks": 60, **table})
    world = Planted(run, chances)
    tasks = [Task(str(number), "") for number in range(200)]
    return PromptSearch(world, run.section(PromptOptimizerSettings), tasks), world  # type: ignore[arg-type]


class TestRounds:
    def test_what_is_better_on_tasks_that_did_not_choose_it_is_kept_for_the_next_agent(
        self, caplog: pytest.LogCaptureFixture
    ) -> None:
        chances = {("Reason.", text): 0.9 for text in ("Add.", "Act. Add.", "Add. Act.")}
        rounds, world = tuner({**chances, ("Reason.", "Act."): 0.1}, candidates=8)
        lineage, metrics = rounds.play_round(rounds.initial_lineage(), 10, [])
        kept = [one for one in lineage.versions if one.accepted and one.number]
        assert (
            f"step 10: prompt_optimization.actor: v{kept[0].number} is what it is told from here on: +"
            in caplog.messages[-1]
        )
        assert caplog.messages[-1].endswith(" on 60 tasks")
        assert [one.role for one in kept] == ["actor"]
        assert kept[0].worth is not None
        assert kept[0].worth.tasks == 60
        assert kept[0].worth.gain > 0.5
        assert kept[0].by == "edits"
        assert kept[0].step == 10
        assert metrics["prompt_optimization/accepted"] == 1.0
        assert world.team.agent("actor").profile.instructions == kept[0].instructions
        assert world.team.agent("actor").profile.version == kept[0].number

    def test_what_is_no_better_is_refused_with_its_interval(self, caplog: pytest.LogCaptureFixture) -> None:
        rounds, world = tuner({})
        lineage, metrics = rounds.play_round(rounds.initial_lineage(), 10, [])
        assert metrics["prompt_optimization/accepted"] == 0.0
        assert len(caplog.messages) == 2
        assert all("is tried and not taken: " in text for text in caplog.messages)
        assert [one.accepted for one in lineage.versions] == [True, True, False, False, False, False]
        assert [agent.profile.instructions for agent in world.team.agents] == ["Reason.", "Act."]

    def test_every_token_is_counted(self) -> None:
        rounds, world = tuner({}, proposer={"name": "evolution", "policy": "actor"}, candidates=3)
        lineage, metrics = rounds.play_round(rounds.initial_lineage(), 10, [])
        assert lineage.tokens == 4 * world.played + 2 * 3 * (5 + 3) == metrics["prompt_optimization/tokens"]
        assert {one.by for one in lineage.versions if one.number} == {"evolution: actor@7"}

    def test_what_all_rounds_may_take_ends_them(self, caplog: pytest.LogCaptureFixture) -> None:
        rounds, _ = tuner({}, token_budget=10)
        lineage, _ = rounds.play_round(rounds.initial_lineage(), 10, [])
        assert {one.role for one in lineage.versions if one.number} == {"reasoner"}
        again, _ = rounds.play_round(lineage, 20, [])
        assert again.versions == lineage.versions
        assert "prompt_optimization.token_budget = 10" in caplog.messages[-1]

    def test_what_an_own_proposer_breaks_is_its_own_turn(self, caplog: pytest.LogCaptureFixture) -> None:
        broken = (
            ("Raising", "raised"), ("Strange", "no Proposal"), ("Orphan", "names parents"), ("Counting", "no Proposal"),
            ("Halved", "no Proposal"), ("Doubtful", "a tuple of numbers"), ("Listed", "a tuple of numbers"),
        )  # fmt: skip
        for name, says in broken:
            caplog.clear()
            rounds, _ = tuner({}, proposer={"name": f"tests.marft_lab.test_profiles:{name}"})
            lineage, metrics = rounds.play_round(rounds.initial_lineage(), 10, [])
            assert metrics["prompt_optimization/proposals"] == 0.0
            assert lineage.rounds == 1
            assert says in caplog.messages[0]

    def test_a_longer_proposal_than_may_be_is_dropped(self, caplog: pytest.LogCaptureFixture) -> None:
        rounds, _ = tuner({}, max_chars=3)
        rounds.play_round(rounds.initial_lineage(), 10, [])
        assert "is dropped (prompt_optimization.max_chars)" in caplog.messages[0]

    def test_few_tasks_are_shared_between_choosing_and_testing(self) -> None:
        rounds, _ = tuner({})
        rounds.tasks = rounds.tasks[:30]
        lineage, _ = rounds.play_round(rounds.initial_lineage(), 10, [])
        assert max(one.worth.tasks for one in lineage.versions if one.worth) == 20


class Raising(Proposer):
    def propose(self, asked: ProposalRequest) -> list[Proposal]:
        raise KeyError(asked.role)


class Strange(Proposer):
    def propose(self, asked: ProposalRequest) -> list[str]:
        return [asked.role]


class Orphan(Proposer):
    def propose(self, asked: ProposalRequest) -> list[Proposal]:
        return [Proposal(asked.role, (99,), "made up")]


class Counting(Proposer):
    def propose(self, asked: ProposalRequest) -> list[Proposal]:
        return [Proposal(asked.role, (0,), 5)]  # type: ignore[arg-type]  # no word of how it was made


class Halved(Proposer):
    def propose(self, asked: ProposalRequest) -> list[Proposal]:
        return [Proposal("half \ud800", (0,), "made up")]  # no file takes that


class Doubtful(Proposer):
    def propose(self, asked: ProposalRequest) -> list[Proposal]:
        return [Proposal(asked.role, (False,), "made up")]


class Listed(Proposer):
    def propose(self, asked: ProposalRequest) -> list[Proposal]:
        return [Proposal(asked.role, [0], "made up")]  # type: ignore[arg-type]


class TestRecipes:
    @pytest.mark.parametrize(
        ("overrides", "says"),
        [
            (["--prompt_optimization.agents", "['acter']"], "did you mean 'actor'"),
            (["--prompt_optimization.proposer", "{ name = 'gradient', policy = 'crtic' }"], "no policy is called 'crtic'"),
            (["--rollout.max_policy_lag", "1", "--engine.kind", "process"], "set it to 0"),
            (["--policies.asked.model", "base", "--prompt_optimization.proposer", "{ name = 'evolution', policy = 'asked' }"],
             "set its train = 'frozen'"),
            (["--prompt_optimization.proposer", "{ name = 'edits', sentences = [' '] }"], "pattern"),
            (["--prompt_optimization.split", "test"], "validation"),
        ],
    )  # fmt: skip
    def test_what_cannot_be_is_refused(self, overrides: list[str], says: str) -> None:
        with pytest.raises(ValueError, match="prompt_optimization") as caught:
            settings("tiny", "runs", *overrides, prompt_optimization=TABLE)
        assert says in str(caught.value)

    def test_a_frozen_policy_may_be_there_for_proposals_alone(self) -> None:
        run = settings(
            "tiny", "runs", "--policies.asked", "{ model = 'base', train = 'frozen' }",
            prompt_optimization={**TABLE, "proposer": {"name": "evolution", "policy": "asked"}},
        )  # fmt: skip
        assert PromptOptimizerSettings.from_run(run).proposer.prompted_policies == ("asked",)
        assert [(one.name, one.actions > 0) for one in compute_workload(run).policies][-1] == ("asked", False)
        assert set(without_helpers(run).policies) == {"reasoner", "actor"}
        assert build_served_table(run.model_dump(mode="json"))["policies"].keys() == {"reasoner", "actor"}

    def test_rounds_end_where_they_are_to(self) -> None:
        due = PromptOptimizerSettings(every=3, last_step=6, proposer=GeneticSentenceProposer(sentences=POOL)).is_due
        assert [step for step in range(1, 13) if due(step)] == [3, 6]


class TestTeams:
    def test_what_skills_add_to_a_profile_stays(self) -> None:
        for before, whole in (("Act.", "Act.\n\nA skill."), ("", "A skill.")):
            team = Team((Agent(AgentProfile("actor", whole), "actor"),), None)  # type: ignore[arg-type]
            told = team.with_prompt_versions([version(3, "Add.")], {"actor": before}).agents[0].profile
            assert (told.instructions, told.version) == ("Add.\n\nA skill.", 3)
            assert team.with_prompt_versions([], {"actor": before}) == team
