"""What guards need scored: held-out text, and actions after the inputs of another task."""

from __future__ import annotations

from dataclasses import replace
from functools import cache
from pathlib import Path

import numpy as np
import pytest
import torch
from transformers import AutoModelForCausalLM

from marft.common.types import Action, Episode, Observation, Task, Transition
from marft.config import RunSettings
from marft.config.bundled import bundled_models
from marft.config.interfaces.schedule import Progress
from marft.models.policy_registry import PolicyRegistry
from marft.trainer.learner import Learner
from tests.episodes import make_action
from tests.helpers import settings

INPUTS, MESSAGES = "agents/actor/dependence/inputs", "agents/actor/dependence/messages"


@pytest.fixture(scope="module")
def models() -> PolicyRegistry:
    return PolicyRegistry(settings())


def played(models: PolicyRegistry, number: int, message: str, answer: str = "It is 5.", task: str = "") -> Episode:
    """An episode whose actor reads a message, as the engine would have scored it."""
    encode = models.policies["actor"].tokenizer.encode
    plan = make_action("reasoner", task=task or f"t{number}", text=message, tokens=tuple(encode(message)))
    prompt = f"<|im_start|>user\n{number} + 2 =\n\nMessage from reasoner:\n{message}<|im_end|>\n<|im_start|>assistant\n"
    act = make_action(
        "actor", index=1, task=task or f"t{number}", sees=(plan.id,), prompt=tuple(encode(prompt)),
        tokens=tuple(encode(answer)), text=answer,
    )  # fmt: skip
    act = replace(act, log_probs=log_probs(act, act.prompt).astype(np.float32))
    earned = (Transition(Observation("o"), 1.0),)
    return Episode(Task(task or f"t{number}", "o"), "train/0", 0, (plan, act), "terminated", earned, True)


@cache
def reference() -> torch.nn.Module:
    return AutoModelForCausalLM.from_pretrained(
        bundled_models()["tiny"], dtype=torch.float64, attn_implementation="eager"
    )


@torch.no_grad()
def log_probs(action: Action, prompt: np.ndarray) -> np.ndarray:
    """Of an action's tokens after a prompt, with transformers' own forward in float64."""
    ids = torch.from_numpy(np.concatenate([prompt, action.tokens])).long()
    logits = reference()(ids[None]).logits[0].log_softmax(-1)
    return np.array([logits[len(prompt) - 1 + i, token].item() for i, token in enumerate(action.tokens)])


def measured(run: RunSettings, models: PolicyRegistry, batch: list[Episode], step: int = 0) -> dict[str, float]:
    return Learner(run, models).diagnostics.measure(batch, step)


def test_a_message_without_a_word_has_no_place_to_be_swapped_in(models: PolicyRegistry) -> None:
    found = measured(settings(), models, [played(models, 11, ""), played(models, 40, "")])
    assert INPUTS in found
    assert MESSAGES not in found


def test_dependence_is_the_log_ratio_a_token_to_the_next_tasks_inputs(models: PolicyRegistry) -> None:
    batch = [played(models, 11, "11 + 2 = 13.", "It is 13."), played(models, 40, "40 + 2 = 42.", "It is 42.")]
    found = measured(settings(), models, batch)
    acts = [episode.actions[1] for episode in batch]
    owed = [
        (act.log_probs.sum() - log_probs(act, other.prompt).sum()) / len(act.tokens)
        for act, other in zip(acts, acts[::-1], strict=True)
    ]
    assert found[INPUTS] == pytest.approx(np.median(owed), abs=1e-4)
    decode, encode = models.policies["actor"].tokenizer.decode, models.policies["actor"].tokenizer.encode
    texts = ("11 + 2 = 13.", "40 + 2 = 42.")
    swapped = [
        np.array(encode(str(decode(act.prompt)).replace(own, other), add_special_tokens=False))
        for act, own, other in zip(acts, texts, texts[::-1], strict=True)
    ]
    of_messages = [
        (act.log_probs.sum() - log_probs(act, prompt).sum()) / len(act.tokens)
        for act, prompt in zip(acts, swapped, strict=True)
    ]
    assert found[MESSAGES] == pytest.approx(np.median(of_messages), abs=1e-4)


def test_messages_that_are_always_the_same_tell_nothing(models: PolicyRegistry) -> None:
    found = measured(
        settings(), models, [played(models, number, "Go on.", f"It is {number + 2}.") for number in (11, 40, 77)]
    )
    assert found[MESSAGES] == pytest.approx(0.0, abs=1e-5)
    assert abs(found[INPUTS]) > 1e-3


def test_what_cannot_be_known_is_absent(models: PolicyRegistry) -> None:
    pair = [played(models, 11, "a"), played(models, 40, "b")]
    assert measured(settings(), models, [played(models, n, "a", task="one") for n in (11, 40)]) == {}
    assert measured(settings("tiny", "runs", "--guards.probes", "0"), models, pair) == {}
    assert measured(settings("tiny", "runs", "--guards.dependence", "0"), models, pair) == {}
    rewritten = [replace(e, actions=(replace(e.actions[0], text="not in it"), e.actions[1])) for e in pair]
    assert [*measured(settings(), models, rewritten)] == [INPUTS]
    failed = [replace(episode, status="failed") for episode in pair]
    assert measured(settings(), models, failed) == {}


def test_held_out_text_is_scored_in_the_steps_that_are_asked_for(models: PolicyRegistry, tmp_path: Path) -> None:
    file = tmp_path / "text.txt"
    file.write_text("23 + 45 = 68, leaving 68 - 12. " * 40)
    ids = np.array(
        models.policies["actor"].tokenizer.encode(file.read_text(), add_special_tokens=False)[:300], np.int32
    )
    run = settings(
        "tiny", tmp_path, "--guards.held_out_text", f"{{ path = '{file}', every = 3, tokens = 300 }}"
    )  # fmt: skip
    found = measured(run, models, [])
    rows = [ids[:256], ids[256:]]
    losses = [-log_probs(make_action(tokens=tuple(row[1:])), row[:1]) for row in rows]
    for name in ("reasoner", "actor"):
        assert found[f"policies/{name}/held_out_loss"] == pytest.approx(np.concatenate(losses).mean(), abs=1e-4)
    assert measured(run, models, [], step=2) == {}
    assert [*measured(run, models, [], step=3)] == [*found]


@pytest.mark.parametrize(("text", "why"), [(None, "cannot read"), ("", "has fewer than two tokens")])
def test_a_held_out_text_that_is_none_is_refused(
    models: PolicyRegistry, tmp_path: Path, text: str | None, why: str
) -> None:
    file = tmp_path / "text.txt"
    if text is not None:
        file.write_text(text)
    run = settings("tiny", tmp_path, "--guards.held_out_text.path", str(file))
    with pytest.raises(ValueError, match=rf"guards\.held_out_text\.path: .*{why}"):
        Learner(run, models)


def test_of_a_held_out_text_no_more_is_read_than_is_asked_for(models: PolicyRegistry, tmp_path: Path) -> None:
    file = tmp_path / "text.txt"
    with file.open("wb") as text:
        text.write(b"2 + 3 = 5. " * 1000)
        text.truncate(2**40)  # a hole; nobody has this much memory
    run = settings("tiny", tmp_path, "--guards.held_out_text", f"{{ path = '{file}', tokens = 64 }}")
    assert "policies/actor/held_out_loss" in measured(run, models, [])
    run = settings("tiny", tmp_path, "--guards.held_out_text.path", "/dev/zero")
    with pytest.raises(ValueError, match="no file"):
        Learner(run, models)


def test_measuring_changes_nothing_that_is_learned(tmp_path: Path) -> None:
    learned = []
    for probes in ("0", "4"):
        run = settings("tiny", tmp_path, "--guards.probes", probes, "--algorithm.optimizer.warmup_steps", "0")
        models = PolicyRegistry(run)
        learner = Learner(run, models)
        batch = [played(models, 11, "a", "13"), replace(played(models, 40, "b", "42"), transitions=())]
        batch[1] = replace(batch[1], transitions=(Transition(Observation("o"), 0.0),))
        metrics = learner.learn(batch, Progress(0, 0))
        for name in (INPUTS, "kl", "kl_to_base"):
            assert (name in metrics) == (probes == "4")
        learned.append([p.detach().clone() for o in learner.optimizers.values() for p in o.parameters.values()])
    assert all(torch.equal(a, b) for a, b in zip(*learned, strict=True))
