"""The learner and its dense twin from the same start, and what each of them does to every weight in a step."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch.optim.optimizer import Optimizer, register_optimizer_step_pre_hook
from transformers import PreTrainedTokenizerBase, Qwen2Config, Qwen2ForCausalLM

from marft.common.types import Action, Episode
from marft.config import RunSettings
from marft.config.interfaces.schedule import Progress
from marft.models.policy_registry import PolicyRegistry
from marft.trainer.learner import Learner
from tests.dense.batch import Writer
from tests.dense.critic import Critic
from tests.dense.model import Base, Policy
from tests.dense.report import Moved, Report
from tests.dense.step import DenseLearner
from tests.helpers import settings

POLICIES: Mapping[str, Any] = {
    "planner": {"model": "base"},
    "solver": {"model": "base", "lora": {"rank": 4, "alpha": 6.0, "target_modules": ["q_proj", "v_proj", "down_proj"]}},
    "frozen": {"model": "base", "train": "frozen"},
}
ROUNDING = 1e-5  # by which weights may be off for what was rounded in steps before, as a norm
TOKENS = {"planner": 7, "solver": 6, "judge": 11}
_BASES: dict[Path, Base] = {}


def save_small_model(folder: Path, tokenizer: PreTrainedTokenizerBase) -> Path:
    """A random Qwen2 of one layer, whose logits are far from uniform."""
    torch.manual_seed(7)
    model = Qwen2ForCausalLM(Qwen2Config(
        vocab_size=len(tokenizer), hidden_size=32, intermediate_size=48, num_hidden_layers=1, num_attention_heads=2,
        num_key_value_heads=1, max_position_embeddings=128, tie_word_embeddings=True,
        eos_token_id=tokenizer.eos_token_id, pad_token_id=tokenizer.pad_token_id, bos_token_id=None,
    ))  # fmt: skip
    for parameter in model.parameters():
        if parameter.dim() > 1:
            torch.nn.init.normal_(parameter, std=0.25)
    model.save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    return folder


def recipe(
    model: Path, algorithm: Mapping[str, Any], policies: Mapping[str, Any] = POLICIES,
    temperatures: Mapping[str, float] | None = None, steps: int = 10, micro_batch: int = 8192, **of_agents: str,
) -> RunSettings:  # fmt: skip
    """Two agents that learn and a frozen judge.

    Args:
        of_agents: policies of roles that are not called as their policy is.
    """
    named = {"planner": "planner", "solver": "solver", "judge": "frozen", **of_agents}
    heat = dict.fromkeys(named, 1.0) | dict(temperatures or {})
    bases = {str(policy["model"]) for policy in policies.values()}
    return settings(
        model, algorithm=algorithm, policies=policies, models={name: {"path": str(model)} for name in bases},
        agents=[
            {"role": role, "policy": policy, "answers": role == "solver",
             "sampling": {"max_new_tokens": TOKENS[role], "temperature": heat[role]}}
            for role, policy in named.items()
        ],
        training={"steps": steps, "tokens_per_micro_batch": micro_batch},
    )  # fmt: skip


class Twins:
    """A learner with weights that are not at their start, and the dense learner with the same."""

    def __init__(self, run: RunSettings, precise: bool = True) -> None:
        self.run, self.models = run, PolicyRegistry(run)
        self.learner = Learner(run, self.models)
        torch.manual_seed(5)
        with torch.no_grad():  # B and the last layer of a value head start at 0, where half of all mistakes hide
            for name, p in self.parameters().items():
                if name.endswith("lora_B"):
                    torch.nn.init.normal_(p, std=0.15)
                if name.endswith("layers.4.weight"):
                    torch.nn.init.normal_(p, std=0.4)
        if precise:
            for model in {id(p.backbone): p.backbone.model for p in self.models.policies.values()}.values():
                model.double()
        folder = Path(run.models["base"].path)
        self.base = _BASES.setdefault(folder, Base(str(folder)))
        self.dense = DenseLearner(run, {n: self._policy(n) for n in run.policies}, self._critic())

    def parameters(self) -> dict[str, torch.nn.Parameter]:
        """``<policy>:<name>`` and ``critic:<name>``."""
        found = {f"{p}:{n}": w for p, o in self.learner.optimizers.items() for n, w in o.parameters.items()}
        if self.learner.critic:
            found |= {f"critic:{n}": w for n, w in self.learner.critic.parameters().items() if w.requires_grad}
        return found

    def densely(self) -> dict[str, Tensor]:
        """The dense twin's, by the same names."""
        found = {f"{p}:{n}": w for p, policy in self.dense.policies.items() for n, w in policy.parameters.items()}
        if self.dense.critic:
            found |= {f"critic:{n}": w for n, w in self.dense.critic.parameters.items()}
        return found

    def writer(self, **changes: Any) -> Writer:
        """Draws episodes from these policies."""
        policies = {agent.role: agent.policy for agent in self.run.agents}
        return Writer(self.score, policies, **changes)

    @torch.no_grad()
    def score(self, action: Action) -> list[float]:
        """Of what a trained policy did."""
        return self.dense._scores(action).numbers() if action.policy in self.dense.trained else []

    def learn(self, episodes: Sequence[Episode], step: int = 0, environment_steps: int = 0) -> tuple[Report, Report]:
        """One training step of each → what the learner did, and what is right."""
        right = self.dense.learn(episodes, step, environment_steps)
        return self.learn_alone(episodes, step, environment_steps), right

    def learn_alone(self, episodes: Sequence[Episode], step: int = 0, environment_steps: int = 0) -> Report:
        """One training step of the learner; the twin stays behind."""
        with recorded(self.parameters()) as moved:
            metrics = self.learner.learn(episodes, Progress(step, environment_steps))
        return Report(moved, metrics)

    def _policy(self, name: str) -> Policy:
        lora = self.run.policies[name].lora
        kept = {n: _leaf(p) for n, p in self.models.policies[name].parameters().items()}
        trains_all = self.run.policies[name].train == "full"
        return Policy(self.base, kept, 0.0 if trains_all else lora.alpha / lora.rank)

    def _critic(self) -> Critic | None:
        critic = self.learner.critic
        if critic is None:
            return None
        heads = {
            name.split(".layers")[0]: name.split("/")[0].split(".")[0]
            for name in critic.parameters()
            if ".layers." in name
        }
        kept = {n: _leaf(p) for n, p in critic.parameters().items() if p.requires_grad}
        return Critic(dict.fromkeys(self.run.models, self.base), self.run.algorithm.critic, kept, heads)


def _leaf(parameter: Tensor) -> Tensor:
    return parameter.detach().double().clone().requires_grad_(True)


@contextmanager
def recorded(parameters: Mapping[str, torch.nn.Parameter]) -> Iterator[list[Moved]]:
    """Every optimizer step that happens, as the optimizer sees it."""
    names = {id(p): name.split(":", 1) for name, p in parameters.items()}
    moved: list[Moved] = []

    def note(optimizer: Optimizer, *_: object) -> None:
        gradients, rates, owners = {}, {}, set()
        for group in optimizer.param_groups:
            for p in group["params"]:
                if p.grad is not None:
                    owner, name = names[id(p)]
                    owners.add(owner)
                    gradients[name], rates[name] = p.grad.detach().double().clone(), float(group["lr"])
        if owners:
            (owner,) = owners
            moved.append(Moved(owner, gradients, rates))

    handle = register_optimizer_step_pre_hook(note)
    try:
        yield moved
    finally:
        handle.remove()


def assert_same(
    twins: Twins, start: Mapping[str, Tensor], mine: Report, right: Report, tolerance: float = 1e-4
) -> None:
    """Every optimizer step, every weight and every metric is what the dense twin has."""
    for owner in sorted({m.owner for m in right.moved} | {m.owner for m in mine.moved}):
        steps = [m for m in mine.moved if m.owner == owner]
        wanted = [m for m in right.moved if m.owner == owner]
        assert len(steps) == len(wanted), f"{owner} steps {len(steps)} times instead of {len(wanted)}"
        for number, (step, wish) in enumerate(zip(steps, wanted, strict=True)):
            assert step.gradients.keys() == wish.gradients.keys(), f"{owner}, step {number}"
            largest = max(float(g.abs().max()) for g in wish.gradients.values())
            for name, gradient in wish.gradients.items():
                off = float((step.gradients[name] - gradient).abs().max())
                assert off <= tolerance * largest, f"{owner}, step {number}, {name}: off by {off:.2g} of {largest:.2g}"
                assert abs(step.rates[name] - wish.rates[name]) <= 1e-9 + 1e-6 * wish.rates[name], (
                    f"{owner}: rate of {name}"
                )
    after, wanted_after = twins.parameters(), twins.densely()
    for name, begun in start.items():
        change = (wanted_after[name].detach() - begun).norm().item()
        off = (after[name].detach().double() - wanted_after[name].detach()).norm().item()
        assert off <= 10 * tolerance * change + ROUNDING, f"{name} ends {off:.2g} off, where it moves by {change:.2g}"
    for name, value in right.metrics.items():
        if name in ("sampler_weight", "clip_fraction") and name not in mine.metrics:
            continue
        assert abs(mine.metrics[name] - value) <= tolerance * (1 + abs(value)), (
            f"{name}: {mine.metrics[name]} for {value}"
        )


def snapshot(twins: Twins) -> dict[str, Tensor]:
    """Where the dense twin stands."""
    return {name: p.detach().clone() for name, p in twins.densely().items()}


def differ(one: Report, other: Report, by: float = 1e-3) -> bool:
    """Whether two dense steps can be told apart by what :func:`assert_same` looks at."""
    if len(one.moved) != len(other.moved):
        return True
    for a, b in zip(one.moved, other.moved, strict=True):
        if a.owner != b.owner or a.gradients.keys() != b.gradients.keys() or a.rates != b.rates:
            return True
        largest = max(float(g.abs().max()) for g in b.gradients.values())
        if any(float((a.gradients[n] - g).abs().max()) > by * largest for n, g in b.gradients.items()):
            return True
    return False
