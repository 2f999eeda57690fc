"""Adapters on the experts of a mixture against peft, alone and with all policies in one forward."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from peft import LoraConfig, PeftModel, get_peft_model
from pydantic import ValidationError
from safetensors.torch import load_file
from tools.model_families import build_small_backbone
from torch import Tensor
from transformers import AutoModelForCausalLM

from marft.common.types import TokenIds
from marft.config.models import LoraSettings, ModelSettings
from marft.models.adapter_files import attach_adapter, read_lora_settings, save_adapter
from marft.models.backbone import Backbone
from marft.models.decode_cache import new_decode_cache
from marft.models.experts import MultiLoraExperts
from marft.models.loader import load_backbone
from marft.models.lora import Adapter
from marft.models.packed_rows import PackedRows, PrefixTree
from tests.families import EXPERTS, FAMILY, random_model
from tests.nights import some

ROWS = [(np.arange(2, n + 2) ** 3 * 7 % 96).astype(np.int32) for n in (3, 23, 11)]
CPU = torch.device("cpu")
BOTH = ("experts.gate_up_proj", "experts.down_proj")
LORA = {
    "all": LoraSettings(rank=4, alpha=8.0, target_modules=("o_proj",), target_parameters=BOTH),
    "down": LoraSettings(rank=6, alpha=3.0, target_modules=(), target_parameters=BOTH[1:]),
    "attention": LoraSettings(rank=2, alpha=3.0, target_modules=("o_proj",)),
}
POLICIES = ["down", "all", None, "attention", "all"]
FAST = ("Qwen 3 with experts", "gpt-oss")


def each(*names: str) -> list[Any]:
    chosen = {*FAST, *some([name for name in names if name not in FAST])}
    return [pytest.param(n, marks=() if n in FAST else pytest.mark.slow) for n in names if n in chosen]


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    return {name: tmp_path_factory.mktemp("family") for name in FAMILY}


def folder_of(folders: dict[str, Path], name: str) -> Path:
    folder = folders[name]
    return folder if (folder / "config.json").is_file() else random_model(FAMILY[name].small_config(), folder)


def tuned(folder: Path, dtype: torch.dtype = torch.float32) -> Backbone:
    """Three policies with random adapters of different ranks and targets."""
    backbone = load_backbone(ModelSettings(path=str(folder)), CPU, dtype)
    torch.manual_seed(1)
    for name, lora in LORA.items():
        backbone.add_adapter(name, lora.rank, lora.alpha, lora.target_modules, 0, lora.target_parameters)
        for adapter in backbone.adapters(name).values():
            torch.nn.init.normal_(adapter.b, std=0.3)
    return backbone


def log_probs(backbone: Backbone, rows: Sequence[TokenIds], policies: Sequence[str | None], size: int = 0) -> Tensor:
    packed = PackedRows.from_rows(rows, policies, CPU, size)
    hidden = backbone.hidden_states(packed)[: sum(packed.lengths)]
    return backbone.compute_logits(hidden, None).log_softmax(-1)


def alone(backbone: Backbone, rows: Sequence[TokenIds], policies: Sequence[str | None]) -> Tensor:
    return torch.cat([log_probs(backbone, [row], [name]) for row, name in zip(rows, policies, strict=True)])


def theirs(folder: Path, adapter: Path) -> PeftModel:
    base = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32, attn_implementation="eager")
    model: PeftModel = PeftModel.from_pretrained(base, str(adapter), is_trainable=True)
    return model.eval()


@pytest.mark.parametrize("name", each(*EXPERTS))
@pytest.mark.parametrize("policy", ["all", "down"])
def test_log_probs_and_gradients_of_a_saved_adapter_are_pefts(
    name: str, policy: str, folders: dict[str, Path], tmp_path: Path
) -> None:
    folder = folder_of(folders, name)
    backbone = tuned(folder)
    assert not backbone.native
    save_adapter(backbone.adapters(policy), LORA[policy], str(folder), tmp_path)
    other = theirs(folder, tmp_path)
    expected = torch.cat([other(torch.from_numpy(row).long()[None]).logits[0] for row in ROWS]).log_softmax(-1)
    mine = log_probs(backbone, ROWS, [policy] * 3)
    torch.testing.assert_close(mine, expected, rtol=0, atol=1e-4)
    weights = torch.randn(mine.shape, generator=torch.Generator().manual_seed(3))
    (mine * weights).sum().backward()
    (expected * weights).sum().backward()
    wanted = [p.grad for n, p in sorted(other.named_parameters()) if p.grad is not None]
    found = [half.grad for half in _sorted_halves(backbone, policy, tmp_path)]
    for gradient, reference in zip(found, wanted, strict=True):
        assert gradient is not None
        torch.testing.assert_close(
            gradient / reference.abs().max(), reference / reference.abs().max(), rtol=0, atol=1e-4
        )


def _sorted_halves(backbone: Backbone, policy: str, saved: Path) -> list[Tensor]:
    """The matrices of a policy in the order of their names in peft, found by their values in its file."""
    halves = [half for adapter in backbone.adapters(policy).values() for half in (adapter.a, adapter.b)]
    return [
        next(h for h in halves if torch.equal(h, value))
        for _, value in sorted(load_file(saved / "adapter_model.safetensors").items())
    ]


@pytest.mark.parametrize("name", each(*EXPERTS))
def test_policies_in_one_forward_and_in_decoding_equal_each_alone(name: str, folders: dict[str, Path]) -> None:
    backbone = tuned(folder_of(folders, name))
    rows = [*ROWS, ROWS[0][::-1], ROWS[2][::-1]]
    expected = alone(backbone, rows, POLICIES)
    torch.testing.assert_close(log_probs(backbone, rows, POLICIES), expected, rtol=0, atol=2e-5)
    torch.testing.assert_close(log_probs(backbone, rows, POLICIES, size=64), expected, rtol=0, atol=2e-5)
    with torch.inference_mode():
        cache = new_decode_cache(backbone)
        heads = PackedRows.from_rows([row[:-1] for row in rows], POLICIES, CPU)
        cache.prefill(heads, [[slot] for slot in range(len(rows))])
        hidden = cache.step(torch.tensor([int(row[-1]) for row in rows]), heads.lengths, POLICIES)
    ends = torch.tensor([len(row) for row in rows]).cumsum(0) - 1
    decoded = backbone.compute_logits(hidden, None).log_softmax(-1)
    torch.testing.assert_close(decoded, expected[ends].detach(), rtol=0, atol=2e-5)


def adapter_of(experts: MultiLoraExperts, weight: str) -> Adapter:
    adapter = experts.adapters_of(weight).get_adapter("one")
    assert adapter is not None
    return adapter


@pytest.mark.parametrize("has_norm", [False, True])
@pytest.mark.parametrize(("name", "first"), [("Nemotron 3", "up_proj"), ("Qwen 3 with experts", "gate_up_proj")])
def test_experts_without_gate_and_with_a_norm_equal_those_with_merged_weights(
    name: str, first: str, has_norm: bool
) -> None:
    backbone, weights = build_small_backbone(FAMILY[name]), (first, "down_proj")
    backbone.add_adapter("one", 4, 8.0, (), 0, [f"experts.{weight}" for weight in weights])
    experts = next(iter(backbone.experts.values()))
    base, size = experts.base, experts.adapters_of(first).shape.in_features
    torch.manual_seed(2)
    if has_norm:
        base.has_post_expert_norm, base.post_expert_norm = True, torch.nn.RMSNorm(size)
    for weight in weights:
        torch.nn.init.normal_(adapter_of(experts, weight).b, std=0.3)
    x, chosen = torch.randn(9, size), torch.stack([torch.randperm(base.num_experts)[:2] for _ in range(9)])
    results = []
    with torch.no_grad():
        for policy in ("one", None):
            with backbone.routing.by_span([(policy, 0, 9)], 9):
                results.append(experts(x, chosen, torch.rand(9, 2, generator=torch.Generator().manual_seed(1))))
            for weight in weights:  # between both results
                adapter = adapter_of(experts, weight)
                b_EOR = adapter.b.view(-1, adapter.rank, base.num_experts).permute(2, 0, 1)
                merged = adapter.scale * b_EOR @ adapter.a.view(base.num_experts, adapter.rank, -1)
                getattr(base, weight).add_(merged)
    torch.testing.assert_close(results[0], results[1], rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("name", each("Qwen 3 with experts"))
def test_rows_with_a_common_prefix_and_checkpointed_layers_have_the_same_gradients(
    name: str, folders: dict[str, Path]
) -> None:
    backbone = tuned(folder_of(folders, name))
    rows = [np.concatenate([ROWS[1], row]) for row in ROWS]
    tree = PackedRows.from_tree(PrefixTree.from_rows(rows, ["all"] * 3), CPU)
    found = []
    for packed, checkpointed in ((PackedRows.from_rows(rows, ["all"] * 3, CPU), False), (tree, False), (tree, True)):
        if checkpointed:
            backbone.checkpoint_activations()
        backbone.model.zero_grad()
        ends = torch.tensor([places[-1] for places in packed.token_indices()])
        backbone.hidden_states(packed)[ends].square().sum().backward()
        found.append([half.grad for adapter in backbone.adapters("all").values() for half in (adapter.a, adapter.b)])
    for first, *others in zip(*found, strict=True):
        for other in others:
            torch.testing.assert_close(other, first, rtol=1e-4, atol=1e-5)


def test_a_new_adapter_changes_no_bit(folders: dict[str, Path]) -> None:
    for dtype in (torch.float32, torch.bfloat16):
        backbone = load_backbone(ModelSettings(path=str(folder_of(folders, "gpt-oss"))), CPU, dtype)
        backbone.add_adapter("new", 4, 8.0, (), 0, BOTH)
        assert torch.equal(log_probs(backbone, ROWS, ["new"] * 3), log_probs(backbone, ROWS, [None] * 3))


def test_an_adapter_that_peft_wrote_loads(folders: dict[str, Path], tmp_path: Path) -> None:
    folder = folder_of(folders, "gpt-oss")
    base = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32, attn_implementation="eager")
    config = LoraConfig(
        r=4, lora_alpha=8, target_modules=["o_proj"], target_parameters=list(BOTH), init_lora_weights=False
    )
    other = get_peft_model(base, config).eval()
    other.save_pretrained(str(tmp_path))
    backbone = load_backbone(ModelSettings(path=str(folder)), CPU, torch.float32)
    lora = attach_adapter(backbone, "theirs", tmp_path)
    assert (lora.target_modules, set(lora.target_parameters)) == (("o_proj",), set(BOTH))
    expected = torch.cat([other(torch.from_numpy(row).long()[None]).logits[0] for row in ROWS]).log_softmax(-1)
    torch.testing.assert_close(log_probs(backbone, ROWS, ["theirs"] * 3), expected, rtol=0, atol=1e-4)
    base_weights = backbone.base_weights()
    assert base_weights.keys() == AutoModelForCausalLM.from_pretrained(folder).state_dict().keys()


def test_a_saved_adapter_loads_with_its_settings(folders: dict[str, Path], tmp_path: Path) -> None:
    backbone = tuned(folder_of(folders, "Qwen 3 with experts"))
    for name in ("all", "down"):
        save_adapter(backbone.adapters(name), LORA[name], "base", tmp_path / name)
        read = read_lora_settings(tmp_path / name)
        assert set(read.target_parameters) == set(LORA[name].target_parameters)
        attach_adapter(backbone, f"{name} again", tmp_path / name)
        again = log_probs(backbone, ROWS, [f"{name} again"] * 3)
        assert torch.equal(again, log_probs(backbone, ROWS, [name] * 3))


def test_a_saved_adapter_is_pefts_whatever_other_policies_adapt(folders: dict[str, Path], tmp_path: Path) -> None:
    folder = folder_of(folders, "Qwen 3 with experts")
    backbone = load_backbone(ModelSettings(path=str(folder)), CPU, torch.float32)
    for name in ("down", "all"):
        backbone.add_adapter(name, 4, 8.0, ("o_proj",), 0, LORA[name].target_parameters)
    for adapter in backbone.adapters("all").values():
        torch.nn.init.normal_(adapter.b, std=0.3)
    save_adapter(backbone.adapters("all"), LORA["all"], str(folder), tmp_path)
    attach_adapter(backbone, "again", tmp_path)
    mine = log_probs(backbone, ROWS[:1], ["all"])
    assert torch.equal(log_probs(backbone, ROWS[:1], ["again"]), mine)
    expected = theirs(folder, tmp_path)(torch.from_numpy(ROWS[0]).long()[None]).logits[0].log_softmax(-1)
    torch.testing.assert_close(mine, expected, rtol=0, atol=1e-4)


def test_adapters_follow_the_base_to_another_device(folders: dict[str, Path]) -> None:
    backbone = tuned(folder_of(folders, "Qwen 3 with experts"))
    torch.nn.Module.to(backbone.model, "meta")
    backbone.add_adapter("new", 4, 8.0, (), 0, BOTH)
    assert {adapter.a.device.type for adapter in backbone.adapters("new").values()} == {"meta"}
    adapters = next(iter(backbone.experts.values())).adapters_of("gate_up_proj")
    stack = adapters.stack(["down", "all", "new"], keep=False)  # "down" has none here
    assert [part.device.type for part in stack] == ["meta", "meta"]


def test_decoding_stacks_adapters_once_until_they_change(folders: dict[str, Path]) -> None:
    backbone = tuned(folder_of(folders, "Qwen 3 with experts"))
    adapters = next(iter(backbone.experts.values())).adapters_of("down_proj")
    one = adapters.get_adapter("all")
    assert one is not None

    def stack(*policies: str) -> tuple[Tensor, Tensor]:
        with torch.inference_mode():
            return adapters.stack(policies, keep=True)

    first = stack("all", "down")
    assert stack("all", "down") is first
    assert not torch.equal(stack("down", "all")[0], first[0])
    assert torch.equal(stack("all", "down")[1], first[1])
    with torch.no_grad():
        one.b.mul_(2.0)
    assert torch.equal(stack("all", "down")[1][::2], first[1][::2] * 2.0)
    one.b.data = one.b.data * 2.0
    assert torch.equal(stack("all", "down")[1][::2], first[1][::2] * 4.0)
    backbone.remove_adapter("all")
    backbone.add_adapter("all", 4, 8.0, (), 0, BOTH)
    assert not stack("all", "down")[1][::2].any()


def test_a_broken_adapter_leaves_rows_of_the_base_as_they_are(folders: dict[str, Path]) -> None:
    backbone = tuned(folder_of(folders, "Qwen 3 with experts"))
    expected = log_probs(backbone, ROWS, [None, "down", None])
    for adapter in backbone.adapters("all").values():
        torch.nn.init.constant_(adapter.a, torch.nan)
    mixed = log_probs(backbone, [*ROWS, ROWS[0]], [None, "down", None, "all"])
    torch.testing.assert_close(mixed[: len(expected)], expected, rtol=0, atol=2e-5)
    assert mixed[len(expected) :].isnan().all()


def test_the_backward_pass_holds_no_copy_of_the_adapters(folders: dict[str, Path]) -> None:
    backbone = load_backbone(ModelSettings(path=str(folder_of(folders, "Qwen 3 with experts"))), CPU, torch.float32)
    for name in ("one", "two"):
        backbone.add_adapter(name, 64, 8.0, (), 0, BOTH)
    weights = {weight.untyped_storage().data_ptr() for weight in backbone.model.parameters()}
    saved: dict[int, int] = {}

    def note(tensor: Tensor) -> Tensor:
        saved[tensor.untyped_storage().data_ptr()] = tensor.untyped_storage().nbytes()
        return tensor

    rows = PackedRows.from_rows([ROWS[0][:1]] * 2, ["one", "two"], CPU)
    with torch.autograd.graph.saved_tensors_hooks(note, lambda tensor: tensor):
        backbone.hidden_states(rows)
    own = sum(half.nbytes for adapter in backbone.adapters("one").values() for half in (adapter.a, adapter.b))
    assert sum(size for pointer, size in saved.items() if pointer not in weights) < own / 4


def test_wrong_targets_are_refused_by_name(folders: dict[str, Path], backbone: Backbone) -> None:
    experts = load_backbone(ModelSettings(path=str(folder_of(folders, "gpt-oss"))), CPU, torch.float32)
    with pytest.raises(
        ValueError, match=r"no weight of experts is called 'experts\.gate'; name some of experts\.down_proj"
    ):
        experts.add_adapter("new", 4, 8.0, (), 0, ["experts.gate"])
    with pytest.raises(ValueError, match=r"'gate_proj'; name some of k_proj, .*; experts have target_parameters$"):
        experts.add_adapter("new", 4, 8.0, ("gate_proj",), 0)
    with pytest.raises(ValueError, match="this model has none that adapters support; remove target_parameters"):
        backbone.add_adapter("new", 4, 8.0, ("q_proj",), 0, BOTH)
    assert not experts.adapters("new")
    with pytest.raises(ValidationError, match="at least 1 item"):
        LoraSettings(target_modules=())
