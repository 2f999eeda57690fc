"""Every algorithm credits recorded episodes as it would have in training."""

from __future__ import annotations

import io
import json
import math
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from rich.console import Console
from rich.table import Table

from marft.common.token_data import PromptReset, TokenSource
from marft.common.types import Episode, Fork, Observation, Task, Transition
from marft.config.algorithm import AlgorithmSettings
from marft.models.policy_registry import PolicyRegistry
from marft.runs.checkpoints import CheckpointManager, load_critic
from marft.runs.episode_files import read_episodes, write_episodes
from marft.runs.metrics_log import LogDigest as LogMark
from marft.runs.run_folder import RunFolder
from marft.runs.state import State
from marft.trainer.learner import Learner
from marft.trainer.micro_batch import FixedLogProbs
from marft.trainer.train import train
from marft_lab.credit_audit.audit import RERENDER_MARKER, CreditAudit, CreditEstimate, audit_credit
from marft_lab.credit_audit.report import (
    action_table,
    agreement_rows,
    agreement_table,
    audit_rows,
    audit_table,
    select_heatmaps,
    write_credit_report,
)
from tests import references_credit as slow
from tests.endpoint import error, says, serving
from tests.episodes import make_action
from tests.helpers import settings
from tests.marft.agents.test_segment_training import TURNS, forgetting
from tests.marft.agents.test_tool_training import begin_with
from tests.marft.cli.test_obeyed import HOSTILE, check, check_page, hostile_episode, terminal
from tests.nights import BY_NIGHT
from tests.remotely import team


def preset(name: str, **changes: Any) -> AlgorithmSettings:
    return AlgorithmSettings.model_validate({"name": name, **changes})


def trained(tmp_path: Path, *overrides: str) -> RunFolder:
    run = settings("tiny", tmp_path, "--rollout.samples_per_task", "3", "--rollout.tasks_per_step", "3", *overrides)
    folder = RunFolder.create(run)
    train(run, folder)
    return folder


@pytest.fixture(scope="module")
def run_folder(tmp_path_factory: pytest.TempPathFactory) -> RunFolder:
    return trained(tmp_path_factory.mktemp("replayed"), "--training.steps", "3")


def advantages_of(audit: CreditAudit, name: str) -> list[float]:
    opinion = next(opinion for opinion in audit.estimates if opinion.algorithm == name)
    assert all(a is not None for a in opinion.advantages)
    return [float(a.mean()) for a in opinion.advantages if a is not None]


def acted(task: str, sample: int, reward: float, tokens: tuple[int, int] = (2, 6), **about: Any) -> Episode:
    """One step of the team: both agents sample so many tokens, each with a log-prob of -1."""
    actions = (
        make_action("reasoner", task=task, sample=sample, tokens=tuple(range(40, 40 + tokens[0]))),
        make_action("actor", index=1, task=task, sample=sample, tokens=tuple(range(60, 60 + tokens[1])), sees=("0/reasoner/0",)),
    )  # fmt: skip
    paid = (Transition(Observation("o"), reward),)
    return replace(Episode(Task(task, "?"), "train/0", sample, actions, "terminated", paid), **about)


def recorded(tmp_path: Path, *steps: list[Episode], **changes: Any) -> RunFolder:
    """A run of which nothing is there but its recipe and the episodes of some steps."""
    folder = RunFolder.create(settings("tiny", tmp_path, **changes))
    for number, episodes in enumerate(steps, 1):
        write_episodes(folder.episodes / f"step_{number:06d}.parquet", episodes)
    return folder


def alone(*rewards: float) -> list[Episode]:
    """An episode of a task of its own for each reward."""
    return [acted(f"t{n}", 0, reward) for n, reward in enumerate(rewards)]


BATCH = [
    acted("t0", 0, 1.0), acted("t0", 1, 3.0), acted("t0", 2, 2.0, (4, 2)), acted("t1", 0, 0.0), acted("t1", 1, 0.0),
]  # fmt: skip
LOST = [acted("t0", 3, 9.0, status="failed"), acted("t0", 4, 9.0, actions=())]


def test_what_algorithms_make_of_recorded_episodes_is_as_it_is_worked_out_by_hand(tmp_path: Path) -> None:
    done: list[int] = []
    names = ["rloo", "reinforce", "grpo", "coma"]
    folder = recorded(tmp_path, alone(5.0, 7.0), BATCH + LOST)
    audit = audit_credit(folder, [preset(name) for name in names], on_done=lambda: done.append(len(done)))
    assert (audit.step, len(audit.episodes), done) == (2, 5, [0, 1, 2, 3])
    rloo, reinforce, grpo, coma = audit.estimates
    twice = [x for row in ([-1.5, 1.5, 0.0, 0.0, 0.0], [1.0, 3.0, 2.0, 0.0, 0.0]) for x in row for _ in range(2)]
    assert advantages_of(audit, "rloo") + advantages_of(audit, "reinforce") == pytest.approx(twice)
    assert advantages_of(audit, "grpo") == pytest.approx([-1, -1, 1, 1, 0, 0, 0, 0, 0, 0], abs=1e-6)
    assert rloo.gradient_share == pytest.approx({"reasoner": 6 / 24, "actor": 18 / 24})  # of |advantage| · tokens
    assert reinforce.gradient_share == pytest.approx({"reasoner": 16 / 44, "actor": 28 / 44})
    assert grpo.gradient_share == pytest.approx({"reasoner": 0.5, "actor": 0.5}, abs=1e-6)  # every action counts alike
    assert all(math.isnan(share) for share in coma.gradient_share.values())
    assert (rloo.metrics["groups"], rloo.metrics["zero_variance_groups"], rloo.metrics["zero_advantage_fraction"]) == (
        2,
        1,
        0.6,
    )
    assert [opinion.algorithm for opinion in audit.estimates] == names
    assert all(opinion.critic == "" and math.isnan(opinion.explained_variance) for opinion in audit.estimates)
    assert [list(opinion.notes) for opinion in audit.estimates[:3]] == [[], [], []]
    assert coma.notes == ["its episodes would be played again from single actions on, and these were not"]
    ranks = 32 / math.sqrt(64 * 76)  # of -1.5, 1.5, 0, 0, 0 and 1, 3, 2, 0, 0, each twice
    assert audit.rank_agreement["rloo", "reinforce"] == pytest.approx(ranks)
    assert audit.sign_agreement["rloo", "reinforce"] == 0.5  # the first is pushed otherwise, the second alike
    assert audit.rank_agreement["rloo", "grpo"] == pytest.approx(1.0)
    assert audit.sign_agreement["rloo", "grpo"] == 1.0
    for name in names[:3]:
        assert math.isnan(audit.rank_agreement[name, "coma"])
        assert math.isnan(audit.sign_agreement[name, "coma"])
    assert list(audit.rank_agreement) == list(audit.sign_agreement) == [
        (a, b) for n, a in enumerate(names) for b in names[n + 1 :]
    ]  # fmt: skip
    table = audit.as_json()
    assert (table["step"], table["episodes"]) == (2, 5)
    pairs: Any = table["agreement"]
    assert pairs[0] == {"algorithms": ("rloo", "reinforce"), "rank": pytest.approx(ranks), "sign": 0.5}
    assert len(pairs) == 6
    first: Any = table["algorithms"]
    assert first[0]["algorithm"] == "rloo"
    assert first[0]["advantages"]["train/0 t0 #0 0/reasoner/0"] == [-1.5]
    assert list(first[0]["advantages"].values()) == [[x] for x in twice[:10]]


@pytest.mark.parametrize(("denominator", "reasoner"), [("policy", (6 / 5) / (6 / 5 + 18 / 3)), ("pooled", 6 / 24)])
def test_shares_of_the_gradient_are_by_each_policy_s_actions_or_by_all_and_however_it_is_cut(
    denominator: str, reasoner: float, tmp_path: Path
) -> None:
    """The reasoner acts five times, the actor three times. Of the advantages -1.5, 1.5 and 0, the reasoner has 2, 2 and
    4 tokens, and the actor 6, 6 and 2."""
    batch = [*BATCH[:3], *(replace(episode, actions=episode.actions[:1]) for episode in BATCH[3:])]
    for tokens in (10, 8192):
        folder = recorded(tmp_path / str(tokens), batch, training={"tokens_per_micro_batch": tokens})
        (opinion,) = audit_credit(folder, [preset("rloo", denominator=denominator)]).estimates
        assert opinion.gradient_share == pytest.approx({"reasoner": reasoner, "actor": 1 - reasoner})


def test_agreement_is_of_an_action_s_mean_over_its_tokens_and_of_small_advantages_too(tmp_path: Path) -> None:
    """By sums over tokens the first action would rank before the second: 0.125 · 9 and 0.375 · 2."""
    batch = [
        replace(acted("t0", n, reward, (tokens, 1)), success=True)
        for n, (reward, tokens) in enumerate([(0.125, 9), (0.375, 2), (0.25, 1)])
    ]
    batch = [replace(episode, actions=episode.actions[:1]) for episode in batch]
    names = ["coma", "reinforce", "rloo"]  # coma: there are no forks, so that all advantages are 0
    found = audit_credit(
        recorded(tmp_path, batch), [preset(names[0]), preset("reinforce", level="token"), preset("rloo")]
    )
    assert found.rank_agreement["reinforce", "rloo"] == pytest.approx(1.0)
    assert found.sign_agreement["reinforce", "rloo"] == 0.5
    for name in names[1:]:
        assert math.isnan(found.rank_agreement["coma", name])
        assert math.isnan(found.sign_agreement["coma", name])


def test_algorithms_agree_or_not_on_the_actions_that_both_train(tmp_path: Path) -> None:
    """``rft`` repeats the actions of the attempts that solved their task, and trains no others."""
    batch = [replace(acted(f"t{n}", 0, reward), success=reward != 2.0) for n, reward in enumerate((1.0, -1.0, 2.0))]
    found = audit_credit(recorded(tmp_path, batch), [preset("reinforce"), preset("rft"), preset("rloo")])
    repeated = found.estimates[1].advantages
    assert [None if a is None else float(a.mean()) for a in repeated] == [1.0] * 4 + [None] * 2
    assert found.sign_agreement["reinforce", "rft"] == 0.5
    assert math.isnan(found.sign_agreement["rft", "rloo"])  # groups of one: no action is pushed
    assert math.isnan(found.rank_agreement["reinforce", "rft"])


def test_actions_of_frozen_policies_have_no_advantage_and_count_for_no_agreement(tmp_path: Path) -> None:
    frozen = {"reasoner": {"model": "base", "train": "frozen"}, "actor": {"model": "base"}}
    two = [acted("t0", 0, 1.0), acted("t0", 1, 3.0)]
    audit = audit_credit(recorded(tmp_path, two, policies=frozen), [preset("rloo"), preset("reinforce")], step=1)
    rloo, reinforce = ([None if a is None else a.tolist() for a in opinion.advantages] for opinion in audit.estimates)
    assert rloo == [None, [-2.0], None, [2.0]]
    assert reinforce == [None, [1.0], None, [3.0]]
    assert audit.rank_agreement["rloo", "reinforce"] == pytest.approx(1.0)
    assert audit.sign_agreement["rloo", "reinforce"] == 0.5
    table: Any = audit.as_json()["algorithms"]
    assert table[0]["advantages"]["train/0 t0 #0 0/reasoner/0"] is None


def test_where_no_action_is_trained_nothing_is_agreed_on(tmp_path: Path) -> None:
    frozen = {"reasoner": {"model": "base", "train": "frozen"}, "actor": {"model": "base"}}
    quiet = [replace(episode, actions=episode.actions[:1]) for episode in BATCH]
    audit = audit_credit(recorded(tmp_path, quiet, policies=frozen), [preset("rloo"), preset("reinforce")])
    assert math.isnan(audit.rank_agreement["rloo", "reinforce"])
    assert math.isnan(audit.sign_agreement["rloo", "reinforce"])
    assert all(math.isnan(share) for share in audit.estimates[0].gradient_share.values())


def test_words_are_those_of_decisions_each_with_what_was_forced_before_it(tmp_path: Path) -> None:
    """The tokens 40 to 45 are F to K; the fourth came from a tool."""
    marks = (
        TokenSource.FORCED,
        TokenSource.SAMPLED,
        TokenSource.SAMPLED,
        TokenSource.TOOL,
        TokenSource.SAMPLED,
        TokenSource.FORCED,
    )
    said = make_action("reasoner", task="t0", tokens=tuple(range(40, 46)), marks=marks)
    context = np.array([5, 6], np.int32)
    anew = replace(said, restarts=(PromptReset(4, context, 1, "rewritten"),))
    late = replace(said, restarts=(PromptReset(5, context, 1, "rewritten"),))
    batch = [replace(acted("t0", n, float(n)), actions=(one,)) for n, one in enumerate((said, anew, late))]
    batch = [
        replace(e, actions=tuple(replace(a, key=a.key._replace(sample=e.sample)) for a in e.actions)) for e in batch
    ]
    audit = audit_credit(recorded(tmp_path, batch), [preset("reinforce")])
    again = "\n[the chat was rendered anew]\n"
    assert audit.words == [["FG", "H", "JK"], ["FG", "H", f"{again}JK"], ["FG", "H", "JK"]]


def test_running_baselines_have_seen_the_steps_before_and_none_later(tmp_path: Path) -> None:
    steps = [alone(1.0, 2.0), alone(4.0, 0.0), alone(8.0), alone(99.0)]
    folder = recorded(tmp_path, *(step + LOST for step in steps))
    for step, (first, second) in ((1, (1.0, 2.0)), (3, (8.0, None))):
        before = sum(0.95 ** (step - 2 - n) * 0.05 * mean for n, mean in enumerate((1.5, 2.0)[: step - 1]))
        expected = [x - before for x in (first, second) if x is not None for _ in range(2)]
        assert advantages_of(audit_credit(folder, [preset("rae")], step=step), "rae") == pytest.approx(expected)


def test_the_policies_of_a_step_are_those_whose_log_probs_were_recorded(tmp_path: Path) -> None:
    """KL off the reward: a token that was recorded as more likely by half a nat costs so much more."""
    costly = preset("reinforce", kl={"coefficient": 0.1, "apply_to": "reward", "estimator": "k1"})
    found = []
    for log_prob in (-1.0, -0.5):
        batch = [
            replace(e, actions=tuple(replace(a, log_probs=np.full_like(a.log_probs, log_prob)) for a in e.actions))
            for e in alone(1.0)
        ]
        found.append(advantages_of(audit_credit(recorded(tmp_path / str(log_prob), batch), [costly]), "reinforce"))
    (_, before), (_, after) = found
    assert before - after == pytest.approx(0.1 * 0.5 * 6, abs=1e-6)


def credited_by(learner: Learner, batch: list[Episode]) -> tuple[list[float], float]:
    """Advantages, and how much of the variance of Monte-Carlo returns the values explain."""
    credited = learner.assign_credit(batch, FixedLogProbs())
    assert credited.inputs.values is not None
    values = np.concatenate(credited.inputs.values.actions)
    returns = np.concatenate(credited.credit.monte_carlo)
    return [float(s.advantages.mean()) for s in credited.samples], 1 - float((returns - values).var() / returns.var())


def seen_as(episode: Episode, *prompt: int) -> Episode:
    """The episode, in which every agent saw this prompt."""
    return replace(
        episode, actions=tuple(replace(action, prompt=np.array(prompt, np.int32)) for action in episode.actions)
    )


def test_a_critic_is_fitted_to_the_nearest_other_steps_in_25_passes(tmp_path: Path) -> None:
    """Of ten steps the ninth is credited, and the first is the farthest: it is left out. Values may move in a pass by
    0.2 (``value_clip``); in 25 passes they move further."""
    earned = [[50.0, 60.0]] + [[float(n)] for n in range(2, 11)]
    earned[8] = [0.0, 1.0, 3.0]
    steps = [
        [seen_as(replace(e, actions=e.actions[:1]), 5, 6 + round(reward)) for e, reward in zip(alone(*rewards), rewards, strict=True)]
        for rewards in earned
    ]  # fmt: skip
    folder = recorded(tmp_path, *steps, algorithm={"critic": {"epochs": 1}, "normalize_advantages": False})
    run = folder.settings()
    (opinion,) = audit_credit(folder, [run.algorithm], step=9).estimates
    unclipped = run.algorithm.critic.model_copy(update={"value_clip": 0.0})
    learner = Learner(
        run.model_copy(update={"algorithm": run.algorithm.model_copy(update={"critic": unclipped})}),
        PolicyRegistry(run),
    )
    assert learner.critic is not None
    near = [episode for n in (8, 10, 7, 6, 5, 4, 3, 2) for episode in steps[n - 1]]
    credited = learner.assign_credit(near, FixedLogProbs())
    assert credited.inputs.values is not None
    for number in range(25):
        learner.critic.update(credited.inputs.values, credited.credit.monte_carlo, number)
    values = np.concatenate(learner.critic.evaluate(steps[8]).actions)
    assert values.min() > 1.2
    found = np.concatenate([a for a in opinion.advantages if a is not None])
    assert found == pytest.approx(np.array([0.0, 1.0, 3.0]) - values, abs=1e-5)
    _, explained = credited_by(learner, steps[8])
    assert abs(explained) > 0.001
    assert opinion.explained_variance == pytest.approx(explained, abs=1e-5)
    assert opinion.critic == "fitted to 8 recorded episodes"
    assert opinion.notes == []


def test_an_own_critic_is_that_of_the_newest_checkpoint_before_and_of_an_algorithm_whose_values_mean_the_same(
    tmp_path: Path,
) -> None:
    steps = [alone(0.0, 1.0), alone(2.0, 5.0)]
    folder = recorded(tmp_path, *steps, algorithm={"critic": {"epochs": 1}})
    run = folder.settings()
    models = PolicyRegistry(run)
    learners = []
    for step in (0, 1, 2):
        learner = Learner(run, models)
        assert learner.critic is not None
        with torch.no_grad():
            for parameter in learner.critic.parameters().values():
                parameter.add_(0.01 * (step + 1))
        CheckpointManager(folder, run.checkpoints).save(
            State(step=step), run, models, learner, LogMark.from_content(b"")
        )
        learners.append(learner)
    (opinion,) = audit_credit(folder, [run.algorithm], step=2).estimates
    assert opinion.critic == "the run's, of step_000001"
    expected, explained = credited_by(learners[1], steps[1])
    assert [float(a.mean()) for a in opinion.advantages if a is not None] == pytest.approx(expected, abs=1e-5)
    assert opinion.explained_variance == pytest.approx(explained, abs=1e-5)
    other = run.algorithm.model_copy(update={"credit": run.algorithm.credit.model_copy(update={"gamma_step": 0.5})})
    (opinion,) = audit_credit(folder, [other], step=2).estimates
    assert opinion.critic == "fitted to 2 recorded episodes"
    assert audit_credit(folder, [run.algorithm], step=1).estimates[0].critic == "the run's, of step_000000"
    weights = folder.checkpoints / "step_000001" / "critic.safetensors"
    whole = weights.read_bytes()
    weights.write_bytes(whole[:-4] + bytes([whole[-4] ^ 1]) + whole[-3:])  # a number that is a little another
    with pytest.raises(ValueError, match="step_000001"):
        audit_credit(folder, [run.algorithm], step=2)


def test_without_other_steps_a_critic_is_untrained_and_what_ends_unjudged_is_named(tmp_path: Path) -> None:
    cut = [acted("t2", n, 1.0, status="truncated") for n in range(2)]
    told = acted("t3", 0, 1.0, status="truncated", bootstrap={"actor": np.array([1, 2], np.int32)})
    audit = audit_credit(recorded(tmp_path, [*BATCH, *cut, told]), [preset("marft"), preset("grpo")])
    marft, grpo = audit.estimates
    assert marft.critic == "untrained"
    assert marft.notes == [
        "its critic is untrained: the run recorded no other step to fit one to",
        "2 truncated episodes count as worth nothing at their end: the run had no critic",
    ]
    assert (grpo.critic, grpo.notes) == ("", [])


def test_forks_count_for_algorithms_that_play_them_and_for_no_other(tmp_path: Path) -> None:
    whole = [acted("t0", 0, 1.0), acted("t1", 0, 4.0)]
    forks = [
        acted("t0", 7 + n, reward, fork=Fork(whole[0].name, whole[0].actions[n].id)) for n, reward in enumerate((3.0, 0.5))
    ]  # fmt: skip
    audit = audit_credit(recorded(tmp_path, whole + forks), [preset("coma"), preset("reinforce"), preset("at-grpo")])
    coma, reinforce, tree = audit.estimates
    assert advantages_of(audit, "coma") == pytest.approx([1.0 - 3.0, 1.0 - 0.5, 0.0, 0.0])
    assert coma.notes == []
    assert advantages_of(audit, "reinforce") == [1.0, 1.0, 4.0, 4.0]
    assert reinforce.notes == tree.notes == []
    unforked = audit_credit(recorded(tmp_path / "unforked", whole), [preset("at-grpo")])
    assert unforked.estimates[0].notes == [
        "its episodes would be played again from single actions on, and these were not: its candidates are the actions "
        "that happen to share a state"
    ]


def test_a_step_without_a_whole_scored_episode_cannot_be_credited(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"step_000001\.parquet: no whole episode in it could be scored"):
        audit_credit(recorded(tmp_path, LOST), [preset("grpo")])


@pytest.mark.slow
def test_group_credits_are_those_of_the_slow_reference(run_folder: RunFolder) -> None:
    audit = audit_credit(run_folder, [preset("grpo"), preset("rloo"), preset("at-grpo"), preset("agent-grpo")], step=2)
    batch = list(audit.episodes)
    assert len(batch) == 9
    for name, expected in (
        ("grpo", [x for x, e in zip(slow.grpo(batch, True), batch, strict=True) for _ in e.actions]),
        ("rloo", [x for x, e in zip(slow.rloo(batch), batch, strict=True) for _ in e.actions]),
        ("at-grpo", [x for row in slow.tree(batch, True) for x in row]),
        ("agent-grpo", [x for row in slow.agent_group(batch, True) for x in row]),
    ):
        np.testing.assert_allclose(advantages_of(audit, name), expected, atol=1e-6)


@pytest.mark.slow
def test_the_runs_own_critic_judges_where_it_reads_the_same_way(run_folder: RunFolder) -> None:
    own = run_folder.settings()
    audit = audit_credit(run_folder, [own.algorithm, preset("ppo")], step=2)
    learner = Learner(own, PolicyRegistry(own))
    path = CheckpointManager(run_folder, own.checkpoints).find("step_000001")
    assert load_critic(path, learner)
    credited = learner.assign_credit(list(audit.episodes), FixedLogProbs())
    assert advantages_of(audit, "marft") == [float(s.advantages.mean()) for s in credited.samples]
    assert [opinion.critic for opinion in audit.estimates] == [
        "the run's, of step_000001", "fitted to 18 recorded episodes"
    ]  # fmt: skip


def test_running_baselines_have_seen_the_steps_before(run_folder: RunFolder) -> None:
    audit = audit_credit(run_folder, [preset("rae")], step=2)
    batches_ = [read_episodes(run_folder.episodes / f"step_00000{step}.parquet") for step in (1, 2)]
    expected = [x for row in slow.rae(batches_, 0.95)[1] for x in row]
    np.testing.assert_allclose(advantages_of(audit, "rae"), expected, atol=1e-9)


def test_shares_and_agreement_add_up(run_folder: RunFolder) -> None:
    audit = audit_credit(run_folder, [preset("marft"), preset("reinforce"), preset("dapo")])
    assert audit.step == 3
    for opinion in audit.estimates:
        shares = list(opinion.gradient_share.values())
        assert all(math.isnan(share) for share in shares) or sum(shares) == pytest.approx(1.0)
    assert set(audit.rank_agreement) == {("marft", "reinforce"), ("marft", "dapo"), ("reinforce", "dapo")}
    assert all(math.isnan(r) or -1.0 <= r <= 1.0 for r in audit.rank_agreement.values())


def test_forks_are_recorded_and_credited_again(tmp_path: Path) -> None:
    folder = trained(
        tmp_path, "--algorithm", "{ name = 'coma', credit = { resamples = 1 } }", "--training.steps", "1",
        "--rollout.samples_per_task", "1",
    )  # fmt: skip
    recorded = read_episodes(folder.episodes / "step_000001.parquet")
    assert sum(episode.fork is not None for episode in recorded) == 2 * 3  # one for each action
    audit = audit_credit(folder, [folder.settings().algorithm, preset("reinforce")])
    assert len(audit.episodes) == 3
    rows = zip(recorded, slow.counterfactual(recorded, True), strict=True)
    expected = [x for episode, row in rows if episode.fork is None for x in row]
    np.testing.assert_allclose(advantages_of(audit, "coma"), expected, atol=1e-9)
    assert not audit.estimates[0].notes


@pytest.mark.slow
def test_the_page_has_a_picture_for_each_episode_shown(run_folder: RunFolder, tmp_path: Path) -> None:
    audit = audit_credit(run_folder, [preset("marft"), preset("ppo"), preset("coma")], step=1)
    pictures = select_heatmaps(audit, 2)
    assert len({picture.episode.task.id for picture in pictures}) == 2
    write_credit_report(tmp_path / "replay", "a run", audit, pictures)
    page = (tmp_path / "replay.html").read_text()
    assert page.count("<h3>") == 2
    assert "marft" in page
    assert "rgba(" in page
    table = json.loads((tmp_path / "replay.json").read_text())
    assert [opinion["algorithm"] for opinion in table["algorithms"]] == ["marft", "ppo", "coma"]
    assert len(table["algorithms"][1]["advantages"]) == 2 * len(audit.episodes)
    assert [row[0] for row in audit_rows(audit)] == [row[0] for row in agreement_rows(audit)]


def test_what_was_not_recorded_is_an_error(run_folder: RunFolder, tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="no episodes of step 9; there are: 1, 2, 3"):
        audit_credit(run_folder, [preset("grpo")], step=9)
    empty = RunFolder.create(settings("tiny", tmp_path))
    with pytest.raises(ValueError, match="has no recorded episodes"):
        audit_credit(empty, [preset("grpo")])


@pytest.mark.slow
def test_a_trees_run_is_judged_on_what_its_policies_made_by_themselves(tmp_path: Path) -> None:
    folder = trained(
        tmp_path, "--algorithm", "{ name = 'at-grpo', credit = { candidates = 2 } }", "--training.steps", "2",
        "--rollout.samples_per_task", "1",
    )  # fmt: skip
    audit = audit_credit(folder, [folder.settings().algorithm, preset("marft"), preset("grpo")])
    assert len(audit.episodes) == 3 * 2  # candidates of the first action: each is an attempt like any other
    own, marft, grpo = audit.estimates
    assert not own.notes
    assert own.metrics["groups"] >= 3
    assert marft.critic == "fitted to 6 recorded episodes"
    assert grpo.metrics["group_size"] == 2


def test_what_models_write_is_shown_and_not_obeyed(run_folder: RunFolder) -> None:
    audit = audit_credit(run_folder, [preset("grpo"), preset("rloo")])
    said = "[/INST] [red]no[/red]\n\x1b[31mred"
    loud = [
        replace(e, actions=tuple(replace(a, text=said) for a in e.actions), task=replace(e.task, id="[b]t"))
        for e in audit.episodes
    ]
    audit = replace(audit, episodes=loud)
    pictures = select_heatmaps(audit, 99)
    assert len(pictures) == len(audit.episodes)
    wide, narrow = shown(200, action_table(audit, pictures)), shown(60, action_table(audit, pictures))
    assert "[b]t #0" in wide
    assert "[/INST] [red]no[/red] �[31mred" in wide
    assert "\x1b[31mred" not in wide
    assert all(f"{x:+.2f}" in narrow for x in advantages_of(audit, "rloo"))  # numbers never give way
    assert "groups of one" in shown(200, audit_table(audit))


def test_in_a_narrow_terminal_episodes_are_named_and_numbers_whole(run_folder: RunFolder) -> None:
    """Beside long texts their column was once one character wide, and numbers ended in an ellipsis."""
    audit = audit_credit(run_folder, [preset("marft"), preset("grpo"), preset("rloo")])
    long = [replace(e, actions=tuple(replace(a, text="word " * 99) for a in e.actions)) for e in audit.episodes]
    audit = replace(audit, episodes=long)
    narrow = shown(80, action_table(audit, select_heatmaps(audit, 99)))
    assert all(f"{e.task.id} #{e.sample}" in narrow for e in long)
    assert "(334 more" in narrow
    for name in ("marft", "grpo", "rloo"):
        assert all(f"{x:+.2f}" in narrow for x in advantages_of(audit, name) if not math.isnan(x))


def shown(width: int, table: Table) -> str:
    console = Console(width=width, record=True, file=io.StringIO())
    console.print(table)
    return console.export_text()


@pytest.mark.slow
def test_a_run_with_a_remote_teammate_is_credited(tmp_path: Path) -> None:
    with serving(lambda body, n: error(500) if n == 1 else says("I think it is 42.")) as server:
        run = team(server, tmp_path, "--training.steps", "1")
        folder = RunFolder.create(run)
        train(run, folder)
    assert len(audit_credit(folder, [run.algorithm], 1).episodes) == 3


@BY_NIGHT
@pytest.mark.slow
def test_where_a_chat_was_rendered_anew_is_on_the_page(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    begin_with(monkeypatch, *TURNS)
    folder = RunFolder.create(forgetting(tmp_path))
    train(folder.settings(), folder)
    audit = audit_credit(folder, [folder.settings().algorithm], step=2)
    write_credit_report(tmp_path / "page", "a run", audit, select_heatmaps(audit, 1))
    assert (tmp_path / "page.html").read_text().count(RERENDER_MARKER.strip()) == 2


def hostile_audit() -> CreditAudit:
    opinion = CreditEstimate(HOSTILE, [None], {}, {HOSTILE: 1.0}, critic=HOSTILE, notes=[HOSTILE])
    agreement = {(HOSTILE, HOSTILE): 1.0}
    return CreditAudit(1, [hostile_episode()], [[HOSTILE, HOSTILE]], [opinion, opinion], agreement, agreement)


@pytest.mark.parametrize(
    "table", [audit_table, agreement_table, lambda audit: action_table(audit, select_heatmaps(audit, 1))]
)
def test_the_terminal_shows_what_was_written_and_obeys_nothing(table: Callable[[CreditAudit], Table]) -> None:
    console = terminal()
    console.print(table(hostile_audit()))
    check(console)


def test_the_page_shows_what_was_written_and_obeys_nothing(tmp_path: Path) -> None:
    write_credit_report(tmp_path / "replay", HOSTILE, hostile_audit(), select_heatmaps(hostile_audit(), 1))
    check_page(tmp_path / "replay.html")
