"""Distillation: teachers' advantages against transformers' own forward in float64, and what is refused."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch

from marft.common.errors import UserError
from marft.common.types import Episode, Observation, Sample, Task, Transition
from marft.config import RunSettings, load_recipe
from marft.config.interfaces.schedule import Progress
from marft.models.packed_rows import PackedRows
from marft.models.policy_registry import PolicyRegistry
from marft.trainer.batching import build_sample
from marft.trainer.learner import Learner
from marft.trainer.ranks.interface import SINGLE_RANK
from tests.episodes import make_action
from tests.marft.trainer.test_probing import log_probs

PROMPT = "<|im_start|>user\n2 + 2 =<|im_end|>\n<|im_start|>assistant\n"


def recipe(output: Path, **changes: object) -> RunSettings:
    """Return a recipe in which the untuned tiny model teaches both agents."""
    given = {
        "algorithm": {"name": "grpo", "kl": {"coefficient": 0.0}},
        "policies.teacher": {"model": "base", "train": "frozen"},
        "distillation": {"teacher": "teacher"},
        "output": str(output),
    }
    return load_recipe("demo_token", changes=given | changes)


def samples(models: PolicyRegistry, answers: Sequence[tuple[str, str]]) -> list[Sample]:
    """Return a sample with advantages 0.5 for each (role, answer); the engine's log-probabilities are its own."""
    rows = []
    for number, (role, text) in enumerate(answers):
        encode = models.policies[role].tokenizer.encode
        action = make_action(
            role, sample=number, prompt=tuple(encode(PROMPT)), tokens=tuple(encode(text)), text=text, policy=role
        )
        engine = np.linspace(-2.0, -0.5, len(action.tokens)).astype(np.float32)
        sample = build_sample(replace(action, log_probs=engine), "token")
        rows.append(replace(sample, advantages=np.full(len(action.tokens), 0.5)))
    return rows


@pytest.fixture(scope="module")
def learner(tmp_path_factory: pytest.TempPathFactory) -> Learner:
    run = recipe(tmp_path_factory.mktemp("runs"))
    return Learner(run, PolicyRegistry(run))


def models_of(learner: Learner) -> PolicyRegistry:
    return PolicyRegistry(recipe(Path("runs")))


def test_a_teachers_advantage_is_the_log_ratio_at_the_sampled_tokens(learner: Learner) -> None:
    assert learner.distillation is not None
    given = samples(models_of(learner), [("reasoner", "It is 4."), ("actor", "4"), ("actor", "I say 5.")])
    taught, metrics = learner.distillation.add_advantages(given, 0, SINGLE_RANK)
    kls: dict[str, list[float]] = {}
    for before, after in zip(given, taught, strict=True):
        signal = log_probs(before.action, before.action.prompt) - before.action.log_probs
        assert after.advantages == pytest.approx(0.5 + signal, abs=1e-4)
        assert after.action is before.action
        kls.setdefault(before.action.agent, []).extend(-signal)
    for role, terms in kls.items():
        assert metrics[f"agents/{role}/distillation/reverse_kl"] == pytest.approx(np.mean(terms), abs=1e-4)
    assert metrics["distillation/reverse_kl"] == pytest.approx(
        np.mean([term for terms in kls.values() for term in terms]), abs=1e-4
    )


def test_weights_scale_both_parts_and_the_teachers_falls(tmp_path: Path, learner: Learner) -> None:
    models = models_of(learner)
    given = samples(models, [("actor", "It is 4.")])
    signal = log_probs(given[0].action, given[0].action.prompt) - given[0].action.log_probs
    table = {"teacher": "teacher", "weight": 0.8, "reward_weight": 0.25, "anneal_steps": 4}
    run = recipe(tmp_path, distillation=table)
    for step, weight in ((0, 0.8), (3, 0.2), (4, 0.0), (9, 0.0)):
        teaching = Learner(run, models).distillation
        assert teaching is not None
        (taught,), metrics = teaching.add_advantages(given, step, SINGLE_RANK)
        assert taught.advantages == pytest.approx(0.125 + weight * signal, abs=1e-4)
        assert metrics["distillation/weight"] == pytest.approx(weight)


def test_only_taught_roles_change(tmp_path: Path, learner: Learner) -> None:
    models = models_of(learner)
    teaching = Learner(recipe(tmp_path, distillation={"teachers": {"actor": "teacher"}}), models).distillation
    assert teaching is not None
    given = samples(models, [("reasoner", "It is 4."), ("actor", "4")])
    taught, metrics = teaching.add_advantages(given, 0, SINGLE_RANK)
    assert taught[0].advantages.tolist() == given[0].advantages.tolist()
    assert taught[1].advantages.tolist() != given[1].advantages.tolist()
    assert "agents/reasoner/distillation/reverse_kl" not in metrics


def test_students_come_closer_to_their_teacher_in_reverse_kl(tmp_path: Path) -> None:
    """Of one token, whose KL is exact: the student begins apart from the teacher, and samples its own tokens."""
    optimizer = {"learning_rate": 1e-3, "warmup_steps": 0}
    changes = {"algorithm": {"name": "grpo", "kl": {"coefficient": 0.0}, "optimizer": optimizer}}
    run = recipe(tmp_path, distillation={"teacher": "teacher", "reward_weight": 0.0}, **changes)
    models = PolicyRegistry(run)
    generator = torch.Generator().manual_seed(0)
    with torch.no_grad():
        for name, tensor in models.policies["actor"].parameters().items():
            if name.endswith("lora_B"):
                tensor += 0.05 * torch.randn(tensor.shape, generator=generator)
    learner, found = Learner(run, models), []
    prompt = np.array(models.policies["actor"].tokenizer.encode(PROMPT), np.int32)
    teacher = next_log_probs(models, "teacher", prompt)
    for step in range(12):
        student = next_log_probs(models, "actor", prompt)
        found.append(float((student.exp() * (student - teacher)).sum()))
        drawn = torch.multinomial(student.exp(), 128, replacement=True, generator=generator).tolist()
        batch = [sampled(number, prompt, token, float(student[token])) for number, token in enumerate(drawn)]
        learner.learn(batch, Progress(step, 0))

    assert found[0] > 0.2
    assert np.mean(found[-4:]) < 0.5 * found[0]


@torch.no_grad()
def next_log_probs(models: PolicyRegistry, policy: str, prompt: np.ndarray) -> torch.Tensor:
    """Return log π of every token after a prompt, [V]."""
    of = models.policies[policy]
    hidden = of.backbone.hidden_states(PackedRows.from_rows([prompt], [of.adapter], of.backbone.device))
    return of.backbone.compute_logits(hidden[-1:], None)[0].log_softmax(-1)


def sampled(number: int, prompt: np.ndarray, token: int, log_prob: float) -> Episode:
    """Return an episode of one sampled token."""
    action = make_action("actor", sample=number, prompt=tuple(prompt.tolist()), tokens=(token,), policy="actor")
    action = replace(action, log_probs=np.array([log_prob], np.float32))
    earned = (Transition(Observation("o"), 1.0),)
    return Episode(Task("t", "o"), "train/0", number, (action,), "terminated", earned, True)


@pytest.mark.parametrize(("changes", "message"), [
    ({"distillation": {}}, "nobody teaches"),
    ({"distillation": {"teacher": "techer"}}, "did you mean 'teacher'"),
    ({"distillation": {"teachers": {"acter": "teacher"}}}, "did you mean 'actor'"),
    ({"distillation": {"teacher": "actor"}}, "would teach itself as 'actor'"),
    ({"policies.teacher": {"model": "base"}}, "set its train = 'frozen'"),
    ({"algorithm": {"name": "gspo", "level": "action"}}, "level = 'token'"),
])  # fmt: skip
def test_what_cannot_teach_is_refused(changes: dict[str, object], message: str, tmp_path: Path) -> None:
    with pytest.raises(UserError, match=message):
        recipe(tmp_path, **changes)


def test_without_the_section_nothing_is_scored(tmp_path: Path) -> None:
    run = load_recipe("demo_token", changes={"output": str(tmp_path)})
    assert Learner(run, PolicyRegistry(run)).distillation is None
