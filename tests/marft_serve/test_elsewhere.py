"""What a GPU would do, without one: nothing lies on the wrong device, and loops wait for it as seldom as they can."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import Tensor

from marft.agents.streaming import Detokenizer
from marft.common.token_data import Grammar
from marft.common.types import Option, SamplingParams
from marft.config import RunSettings
from marft.config.interfaces.schedule import Progress
from marft.inference.choice_sampling import ChoiceRequest, choose
from marft.inference.decoding import DecodeRequest, RowResult, RunningBatch
from marft.inference.grammar_masking import GrammarCompiler, GrammarMasker
from marft.models.backbone import Backbone
from marft.models.log_probs import OutputHead, score_tokens
from marft.models.packed_rows import PackedRows
from marft.models.policy_registry import PolicyRegistry
from marft.trainer.learner import Learner
from marft.trainer.non_finite_guard import Snapshot, find_non_finite
from marft_serve.traces.settings import SftSettings
from marft_serve.traces.sft import SftLearner
from tests.elsewhere import CPU, DEVICE, Elsewhere, elsewhere
from tests.learners import begun, episodes, recipe, samples_of
from tests.nights import BY_NIGHT, some

ROWS = [np.arange(3, 9, dtype=np.int32), np.arange(3, 30, dtype=np.int32), np.arange(40, 51, dtype=np.int32)]
LEARNT = {
    "marft": (),
    "grpo": ("--algorithm.kl", "{ coefficient = 0.1 }"),
    "ppo": ("--algorithm.entropy_coefficient", "0.01", "--algorithm.sampler_correction.level", "action"),
    "happo": (),
    "gspo": ("--algorithm.sampler_correction.level", "geometric"),
}
WAITS = {"marft": 17, "grpo": 8, "ppo": 17, "happo": 31, "gspo": 8}  # in a step on four episodes


Small = Callable[..., RunSettings]


@pytest.fixture
def small(tmp_path: Path, random_model: Path) -> Small:
    """Recipes of an algorithm on the random model."""
    return lambda name, *overrides: recipe(tmp_path, name, "--models.base.path", str(random_model), *overrides)


def tune(backbone: Backbone) -> None:
    """Give a backbone adapters that say something."""
    torch.manual_seed(5)
    for policy in ("one", "two"):
        backbone.add_adapter(policy, 4, 8.0, ("q_proj", "up_proj"), seed=0)
        for adapter in backbone.adapters(policy).values():
            torch.nn.init.normal_(adapter.b, std=0.3)


def plain(tensor: Tensor) -> Tensor:
    return tensor.held if isinstance(tensor, Elsewhere) else tensor


class TestTheDeviceThatIsNotThere:
    @pytest.mark.parametrize(
        ("what", "wait"),
        [
            (lambda x: x.sum().item(), "_local_scalar_dense"), (lambda x: bool((x > 0).all()), "_local_scalar_dense"),
            (lambda x: x.tolist(), "read"), (lambda x: x.cpu(), "read"), (lambda x: x[x > 0], "by a mask"),
            (lambda x: x.nonzero(), "nonzero"), (lambda x: x[[0, 1]], "sent"), (lambda x: torch.ones(3).to(x.device), "sent"),
            (lambda x: torch.tensor([1.0], device=x.device), "sent"),
            (lambda x: x.repeat_interleave(torch.tensor([1, 2, 1], device=x.device)), "repeat_interleave"),
        ],
    )  # fmt: skip
    def test_counts_whoever_waits_for_it(self, what: Callable[[Tensor], object], wait: str) -> None:
        with elsewhere() as waits:
            x = torch.ones(3, device=DEVICE)
            assert not waits
            what(x)
            assert any(wait in name for name in waits), waits

    def test_waits_for_nobody_who_only_computes(self) -> None:
        with elsewhere() as waits:
            x = torch.ones(3, device=DEVICE, requires_grad=True)
            (x.cumsum(0) @ torch.from_numpy(np.ones(3, np.float32)).to(DEVICE, non_blocking=True)).backward()
            assert not waits
            assert plain(x.grad).tolist() == [3.0, 2.0, 1.0]  # type: ignore[arg-type]

    @pytest.mark.parametrize(
        "mistake",
        [
            lambda x: x + torch.ones(3), lambda x: torch.cat([x, torch.ones(1)]), lambda x: x[torch.tensor([0, 1])] + 0,
            lambda x: x.index_add(0, torch.tensor([0]), torch.ones(1, device=DEVICE)), lambda x: torch.ones(3) @ x,
        ],
    )  # fmt: skip
    def test_refuses_tensors_of_the_host(self, mistake: Callable[[Tensor], object]) -> None:
        with elsewhere(), pytest.raises(RuntimeError, match="among tensors of another device"):
            mistake(torch.ones(3, device=DEVICE))

    def test_takes_single_numbers_of_the_host(self) -> None:
        with elsewhere():
            assert plain(torch.ones(2, device=DEVICE) * torch.tensor(3.0)).tolist() == [3.0, 3.0]


class TestForward:
    @pytest.mark.parametrize("forward", ["fused", "packed", "own"])
    @pytest.mark.parametrize("again", [False, True])
    def test_packed_rows_and_their_gradients_are_the_hosts(self, backbone: Backbone, forward: str, again: bool) -> None:
        def run(place: torch.device) -> tuple[Tensor, list[Tensor]]:
            hidden = backbone.hidden_states(PackedRows.from_rows(ROWS, ["one", "two", None], place, size=64))
            hidden.square().sum().backward()
            parameters = [p for name in ("one", "two") for a in backbone.adapters(name).values() for p in (a.a, a.b)]
            gradients = [plain(p.grad).clone() for p in parameters if p.grad is not None]
            for parameter in parameters:
                parameter.grad = None
            return plain(hidden.detach()), gradients

        tune(backbone)
        for _ in range(("fused", "packed", "own").index(forward)):
            backbone.use_slower_forward()
        if again:
            backbone.checkpoint_activations()
        hidden, gradients = run(CPU)
        with elsewhere() as waits:
            torch.nn.Module.to(backbone.model, DEVICE)
            waits.clear()
            hidden_there, gradients_there = run(DEVICE)
            assert not waits or not backbone.fused  # transformers' modules look at positions once a forward
        rows = sum(map(len, ROWS))
        torch.testing.assert_close(hidden_there[:rows], hidden[:rows], rtol=1e-4, atol=1e-5)
        assert len(gradients) == len(gradients_there) > 0
        for mine, theirs in zip(gradients_there, gradients, strict=True):
            torch.testing.assert_close(mine, theirs, rtol=1e-3, atol=1e-3)

    @pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
    def test_log_probs_in_chunks_wait_for_nothing(self, dtype: torch.dtype) -> None:
        """Also of tokens that cannot be, whose entropy is looked at: that of the host looks first."""
        torch.manual_seed(0)
        hidden, head = torch.randn(300, 8), torch.randn(5000, 8).to(dtype)
        bias = torch.zeros(5000, dtype=dtype)
        bias[7] = -torch.inf
        targets = torch.randint(8, 5000, (300,))
        found = []
        for place in (CPU, DEVICE):
            with elsewhere() as waits:
                states, weight, b, y = (x.to(place).detach() for x in (hidden, head, bias, targets))
                waits.clear()
                scores = score_tokens(states.requires_grad_(), OutputHead(weight, b), y, None, entropy_gradient=True)
                (scores.log_probs.sum() + scores.entropies.sum()).backward()
                assert not waits or place == CPU
                found.append([plain(x.detach()) for x in (*scores, states.grad)])
        for here, there in zip(*found, strict=True):
            assert torch.isfinite(here).all()
            torch.testing.assert_close(there, here, rtol=1e-3, atol=2e-3)


class TestDecoding:
    def batch(self, backbone: Backbone, **options: object) -> RunningBatch:
        return RunningBatch(backbone, [2], lambda: Detokenizer(lambda ids: " ".join(map(str, ids))), **options)  # type: ignore[arg-type]

    def rows(self, *options: dict[str, object]) -> list[DecodeRequest]:
        random = np.random.default_rng(0)
        return [
            DecodeRequest(("one", "two", None)[number % 3], ROWS[number % 3], SamplingParams(max_new_tokens=6 + number, **one),  # type: ignore[arg-type]
                random.random(6 + number, np.float32))
            for number, one in enumerate(options)
        ]  # fmt: skip

    def played(
        self, batch: RunningBatch, rows: list[DecodeRequest], waits: Counter[str] | None = None
    ) -> list[tuple[list[int], list[float]]]:
        """Tokens and log-probs of all rows; one token for all of them is one transfer, whoever comes to an end."""
        ask: list[Callable[[], list[RowResult]]] = [lambda: batch.admit(rows)]
        done: list[RowResult] = []
        while ask or len(batch):
            if waits is not None:
                waits.clear()
            done += ask.pop()() if ask else batch.step()
            assert waits is None or waits == {"read": 1}
        of_row = {id(one.row): one for one in done}
        return [(of_row[id(row)].tokens.tolist(), of_row[id(row)].log_probs.tolist()) for row in rows]

    MIXED = (
        {},
        {"temperature": 0.0},
        {"temperature": 0.5, "top_p": 0.9},
        {"top_k": 5},
        {"alternatives": 3},
        {"stop": ("9 9",)},
    )

    @pytest.mark.parametrize("forward", ["fused", pytest.param("packed", marks=BY_NIGHT), "own"])
    @pytest.mark.parametrize("kept", [pytest.param(0, marks=BY_NIGHT), 2**20])
    def test_a_step_reads_once_and_draws_what_the_host_draws(self, backbone: Backbone, forward: str, kept: int) -> None:
        tune(backbone)
        for _ in range(("fused", "packed", "own").index(forward)):
            backbone.use_slower_forward()
        here = self.played(self.batch(backbone, prefix_bytes=kept), self.rows(*self.MIXED))
        with elsewhere() as waits:
            torch.nn.Module.to(backbone.model, DEVICE)
            counted = waits if backbone.fused else None  # transformers' modules look at positions once a forward
            there = self.played(self.batch(backbone, prefix_bytes=kept), self.rows(*self.MIXED), counted)
        assert [tokens for tokens, _ in there] == [tokens for tokens, _ in here]
        for (_, mine), (_, theirs) in zip(there, here, strict=True):
            assert mine == pytest.approx(theirs, abs=1e-4)

    def test_grammars_wait_for_no_more(self, backbone: Backbone, tiny_tokenizer: object) -> None:
        grammar = Grammar("regex", "[0-9]{3}")
        tune(backbone)
        with elsewhere() as waits:
            torch.nn.Module.to(backbone.model, DEVICE)
            holding = GrammarMasker(GrammarCompiler.for_tokenizer(tiny_tokenizer, [2]), len(backbone.head.weight))  # type: ignore[arg-type]
            batch = self.batch(backbone, grammar_masker=holding)
            self.played(batch, self.rows({}, {"grammar": grammar}, {"grammar": grammar}), waits)

    def test_choices_read_once(self, backbone: Backbone) -> None:
        options = [Option(np.arange(5, 6 + n, dtype=np.int32)) for n in range(3)]
        requests = [
            ChoiceRequest(policy, row, options, SamplingParams(temperature=t, top_p=p), 0.4)
            for policy, row in zip(("one", "two", None), ROWS, strict=True) for t, p in ((1.0, 1.0), (0.0, 0.5))
        ]  # fmt: skip
        tune(backbone)
        here = choose(backbone, requests)
        with elsewhere() as waits:
            torch.nn.Module.to(backbone.model, DEVICE)
            waits.clear()
            there = choose(backbone, requests)
            assert waits == {"read": 1}
        assert [choice.chosen for choice in there] == [choice.chosen for choice in here]


@pytest.mark.slow
class TestLearning:
    def learned(self, small: Small, name: str, *overrides: str) -> tuple[dict[str, float], Counter[str], Learner]:
        """One step elsewhere, after one that made the optimizers' moments."""
        with elsewhere() as waits:
            run = small(name, "--device", "meta", *overrides)
            learner = begun(run)
            waits.clear()
            metrics = learner.learn(episodes(4), Progress(0, 0))
            return metrics, Counter(waits), learner

    @BY_NIGHT
    @pytest.mark.parametrize("name", some(LEARNT))
    def test_waits_do_not_grow_with_micro_batches(self, small: Small, name: str) -> None:
        """A minibatch reads before it steps, what it measured and decides by, and its norms; nothing else is waited for."""
        counts = []
        for tokens in ("60", "130"):
            size = "--training.tokens_per_micro_batch", tokens
            metrics, waits, _ = self.learned(small, name, *size, *LEARNT[name])
            assert set(waits) == {"read"}
            assert metrics["gradient_norm"] > 0
            counts.append(waits["read"])
        assert counts[0] == counts[1]
        assert counts[0] <= WAITS[name]

    @pytest.mark.parametrize("name", some(LEARNT, of=5))
    def test_what_is_learned_is_what_the_host_learns(self, small: Small, name: str) -> None:
        there, _, _ = self.learned(small, name, *LEARNT[name])
        here = begun(small(name, "--device", "cpu", *LEARNT[name])).learn(episodes(4), Progress(0, 0))
        assert there.keys() == here.keys()
        for metric in (
            "gradient_norm",
            "policy_loss",
            "kl",
            "entropy",
            "critic/loss",
            "agents/actor/log_prob_difference",
        ):
            if metric in here:
                assert there[metric] == pytest.approx(here[metric], rel=2e-2, abs=1e-5), metric

    @pytest.mark.parametrize(
        "changes",
        some([
            ("--models.base.dtype", "bfloat16"),
            ("--training.share_prefixes", "always"),
            ("--models.base.gradient_checkpointing", "true"),
            ("--policies.actor.train", "full", "--policies.actor.lora", "{}"),
            ("--algorithm.critic.body", "lora", "--algorithm.critic.normalize_values", "true"),
            ("--algorithm.level", "token"),
        ], of=6),
    )  # fmt: skip
    def test_nothing_lies_on_the_wrong_device(self, small: Small, changes: tuple[str, ...]) -> None:
        metrics, waits, learner = self.learned(small, "marft", *changes)
        assert set(waits) == {"read"} or "--models.base.gradient_checkpointing" in changes  # as modules of transformers
        assert metrics["gradient_norm"] > 0
        with elsewhere():
            assert find_non_finite(learner) == []

    def test_imitating_reads_losses_and_norms(self, small: Small) -> None:
        with elsewhere() as waits:
            run = small("marft", "--device", "meta", "--training.tokens_per_micro_batch", "100")
            supervisor = SftLearner(run, PolicyRegistry(run), 2, SftSettings.from_run(run).build_optimizer(run, 2))
            waits.clear()
            supervisor.learn(samples_of(episodes(4)), 0)
            assert waits == {"read": 2}

    @BY_NIGHT
    def test_a_step_can_be_undone(self, small: Small) -> None:
        with elsewhere():
            learner = begun(small("marft", "--device", "meta"))
            before = Snapshot(learner)
            learner.learn(episodes(4), Progress(0, 0))
            before.take()
            first = [plain(p).clone() for one in learner.optimizers.values() for p in one.parameters.values()]
            learner.learn(episodes(4), Progress(1, 24))
            before.restore()
            again = [plain(p) for one in learner.optimizers.values() for p in one.parameters.values()]
            assert all(torch.equal(one, other) for one, other in zip(first, again, strict=True))
