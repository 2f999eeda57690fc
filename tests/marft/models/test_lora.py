"""The multi-adapter layer against peft, alone and with all agents in one forward."""

from __future__ import annotations

import copy
import json
from dataclasses import fields
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import assume, event, example, given, settings
from hypothesis import strategies as st
from peft import LoraConfig, PeftModel, get_peft_model
from peft.tuners.lora import Linear as LoraLinear
from peft.tuners.lora import LoraLayer
from safetensors.torch import load_file, save_file
from torch import nn
from transformers import AutoModelForCausalLM

from marft.config.models import LoraSettings, ModelSettings
from marft.models.adapter_files import IGNORED_KEYS, attach_adapter, load_adapter, read_lora_settings, save_adapter
from marft.models.attention import DecodePlan, KVCache, PackedPlan
from marft.models.backbone import Backbone
from marft.models.loader import load_backbone
from marft.models.lora import Adapter, MultiLoraLinear, Routing
from marft.models.packed_rows import PackedRows
from tests.nights import BY_NIGHT, MANY, by_day, some

ROWS = [
    np.array([3, 14, 15, 92, 65, 35], np.int32),
    np.array([27, 18, 28], np.int32),
    np.array([31, 41, 59, 26], np.int32),
]
LORA = {
    "one": LoraSettings(rank=4, alpha=16.0),
    "two": LoraSettings(rank=8, alpha=8.0, target_modules=("q_proj", "v_proj", "down_proj")),
}


@pytest.fixture
def tuned(backbone: Backbone) -> Backbone:
    """Two policies with random adapters of different ranks and targets."""
    torch.manual_seed(1)
    for name, lora in LORA.items():
        backbone.add_adapter(name, lora.rank, lora.alpha, lora.target_modules, seed=0)
        for adapter in backbone.adapters(name).values():
            torch.nn.init.normal_(adapter.b, std=0.3)
    return backbone


def test_the_layer_equals_pefts_layer_to_1e_6_in_float32(tuned: Backbone) -> None:
    """One layer, outputs and all gradients, for inputs of unit size."""
    torch.manual_seed(2)
    layer = tuned.layers["model.layers.0.self_attn.q_proj"]
    for name, lora in LORA.items():
        adapter = layer.get_adapter(name)
        assert adapter is not None
        theirs = peft_layer(layer.base, adapter, lora)
        x = torch.randn(1, 11, layer.base.in_features)
        mine_x, their_x = x.clone().requires_grad_(), x.clone().requires_grad_()
        with tuned.routing.by_span([(name, 0, 11)], 11):
            mine = layer(mine_x)
        other = theirs(their_x)
        torch.testing.assert_close(mine, other, rtol=0, atol=1e-6)
        upstream = torch.randn_like(mine) / 10
        (mine * upstream).sum().backward()
        (other * upstream).sum().backward()
        pairs = [
            (mine_x.grad, their_x.grad),
            (adapter.a.grad, theirs.lora_A["default"].weight.grad),
            (adapter.b.grad, theirs.lora_B["default"].weight.grad),
        ]
        for gradient, expected in pairs:
            torch.testing.assert_close(gradient, expected, rtol=0, atol=1e-6)


@pytest.mark.parametrize("name", ["one", "two"])
def test_a_whole_model_and_its_saved_adapter_equal_peft(
    tuned: Backbone, random_model: Path, tmp_path: Path, name: str
) -> None:
    """In float64, so that only a different computation could show; with the model's own norms, which are float32."""
    tuned.fused = False
    save_adapter(tuned.adapters(name), LORA[name], str(random_model), tmp_path)
    tuned.model.double()
    base = AutoModelForCausalLM.from_pretrained(random_model, dtype=torch.float64)
    other = PeftModel.from_pretrained(base, str(tmp_path), is_trainable=True).eval().double()
    theirs = torch.cat([other(torch.from_numpy(row).long()[None]).logits[0] for row in ROWS])
    mine = tuned.hidden_states(PackedRows.from_rows(ROWS, [name] * 3, tuned.device)) @ tuned.head.weight.T
    torch.testing.assert_close(mine, theirs, rtol=0, atol=1e-6)
    mine.square().sum().backward()
    theirs.square().sum().backward()
    gradients = {n: p.grad for n, p in other.named_parameters() if p.grad is not None}
    for layer, adapter in tuned.adapters(name).items():
        for half, parameter in (("A", adapter.a), ("B", adapter.b)):
            expected = gradients.pop(f"base_model.model.{layer}.lora_{half}.default.weight")
            torch.testing.assert_close(parameter.grad, expected, rtol=1e-6, atol=1e-6)
    assert not gradients


def peft_layer(base: torch.nn.Linear, adapter: Adapter, lora: LoraSettings) -> LoraLinear:
    layer = LoraLinear(base, "default", LoraConfig(), r=lora.rank, lora_alpha=lora.alpha)  # type: ignore[arg-type]
    with torch.no_grad():
        layer.lora_A["default"].weight.copy_(adapter.a)
        layer.lora_B["default"].weight.copy_(adapter.b)
    layer.lora_A.requires_grad_(True)
    layer.lora_B.requires_grad_(True)
    return layer


def test_all_agents_in_one_forward_equal_each_alone(tuned: Backbone) -> None:
    together = tuned.hidden_states(PackedRows.from_rows(ROWS, ["one", "two", None], tuned.device))
    alone = torch.cat([
        tuned.hidden_states(PackedRows.from_rows([row], [policy], tuned.device))
        for row, policy in zip(ROWS, ["one", "two", None], strict=True)
    ])  # fmt: skip
    torch.testing.assert_close(together, alone, rtol=0, atol=1e-5)


def test_rows_of_many_policies_decode_as_they_would_alone(tuned: Backbone) -> None:
    """One token a row, adapters stacked and masked by row, against the packed forward of the whole rows."""
    policies = ["one", None, "two"]
    expected = tuned.hidden_states(PackedRows.from_rows(ROWS, policies, tuned.device))
    cache = KVCache(tuned.num_layers)
    cache.reserve(3, 16)
    heads = [row[:-1] for row in ROWS]
    with torch.inference_mode():
        packed = PackedRows.from_rows(heads, policies, tuned.device)
        tuned.hidden_states(packed, PackedPlan(packed.lengths, tuned.device, cache, [[0], [1], [2]]))
        last = torch.tensor([int(row[-1]) for row in ROWS])
        plan = DecodePlan(cache, packed.lengths, tuned.device)
        hidden = tuned.next_hidden_states(last, plan.lengths, policies, plan)
    ends = np.cumsum([len(row) for row in ROWS]) - 1
    torch.testing.assert_close(hidden, expected[torch.from_numpy(ends)], rtol=0, atol=1e-5)


def test_every_agent_of_one_forward_gets_a_gradient(tuned: Backbone) -> None:
    """Switching the active adapter between forwards once left only the last agent with gradients."""
    hidden = tuned.hidden_states(PackedRows.from_rows(ROWS, ["one", "two", "one"], tuned.device))
    hidden[:, 0].sum().backward()
    for name in LORA:
        for adapter in tuned.adapters(name).values():
            assert adapter.a.grad is not None
            assert adapter.a.grad.abs().sum() > 0


def test_a_policy_without_rows_gets_no_gradient_at_all(tuned: Backbone) -> None:
    tuned.hidden_states(PackedRows.from_rows(ROWS, ["one", "one", None], tuned.device))[:, 0].sum().backward()
    assert all(adapter.a.grad is None for adapter in tuned.adapters("two").values())


def test_gradients_are_the_same_when_activations_are_computed_again(tuned: Backbone) -> None:
    """The backward pass runs the layers again: each row must meet its own adapter there too."""
    tuned.fused = False  # as it is when activations are computed again
    rows = PackedRows.from_rows(ROWS, ["one", "two", "one"], tuned.device)
    forwards: list[int] = []
    tuned.model.get_submodule("model.layers.0.self_attn.q_proj").register_forward_pre_hook(
        lambda *_: forwards.append(1)
    )
    gradients = []
    for again in (False, True):
        if again:
            tuned.checkpoint_activations()
        tuned.model.zero_grad()
        forwards.clear()
        (tuned.hidden_states(rows) * torch.linspace(-1, 1, 64)).sum().backward()
        assert len(forwards) == 1 + again
        gradients.append([a.a.grad.clone() for name in LORA for a in tuned.adapters(name).values()])
    for plain, recomputed in zip(*gradients, strict=True):
        torch.testing.assert_close(recomputed, plain)


def test_a_fresh_adapter_changes_nothing(backbone: Backbone) -> None:
    before = backbone.hidden_states(PackedRows.from_rows(ROWS, [None] * 3, backbone.device))
    backbone.add_adapter("new", 4, 16.0, ("q_proj", "o_proj"), seed=0)
    after = backbone.hidden_states(PackedRows.from_rows(ROWS, ["new"] * 3, backbone.device))
    torch.testing.assert_close(after, before, rtol=0, atol=0)


def test_adapters_are_float32_on_a_half_precision_base(random_model: Path) -> None:
    """Half-precision adapters with Adam's ε once lost the second moment to underflow."""
    half = load_backbone(ModelSettings(path=str(random_model)), torch.device("cpu"), torch.bfloat16)
    half.add_adapter("new", 4, 16.0, ("q_proj",), seed=0)
    for adapter in half.adapters("new").values():
        assert adapter.a.dtype == adapter.b.dtype == torch.float32
    hidden = half.hidden_states(PackedRows.from_rows(ROWS, ["new"] * 3, half.device))
    assert hidden.dtype == torch.bfloat16
    hidden.float().sum().backward()


@pytest.mark.parametrize("how", ["stretches", "whole", "rows"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=["float32", "bfloat16"])
def test_an_adapters_change_counts_alpha_over_rank_times_in_every_precision(dtype: torch.dtype, how: str) -> None:
    """Values and gradients of one layer, against float64 on the same weights and inputs."""
    torch.manual_seed(0)
    base, routing = nn.Linear(16, 12).to(dtype).requires_grad_(False), Routing()
    layer = MultiLoraLinear(base, routing)
    layer.add_adapter("one", 2, 16.0, torch.Generator().manual_seed(0))
    layer.add_adapter("two", 4, 2.0, torch.Generator().manual_seed(1))
    owners = ["one"] * 3 + ["two"] * 2 + [None, "one"]
    x = torch.randn(1, 7, 16).to(dtype)
    adapters = {name: found for name in ("one", "two") if (found := layer.get_adapter(name)) is not None}
    for adapter in adapters.values():
        nn.init.normal_(adapter.b, std=0.5)
    stretches = [("one", 0, 3), ("two", 3, 5), (None, 5, 6), ("one", 6, 7)]
    with routing.by_row(owners) if how == "rows" else routing.by_span(stretches, 7, full_batch=how == "whole"):
        mine = layer(x)[0]
    halves = {name: (a.a.detach().double(), a.b.detach().double()) for name, a in adapters.items()}
    leaves = [half.requires_grad_() for pair in halves.values() for half in pair]
    rows = []
    for row, owner in zip(x[0].double(), owners, strict=True):
        out = base.weight.double() @ row + base.bias.double()
        if owner is not None:
            out = out + (8.0 if owner == "one" else 0.5) * (halves[owner][1] @ (halves[owner][0] @ row))
        rows.append(out)
    expected = torch.stack(rows)
    close = {"rtol": 1e-5, "atol": 1e-5} if dtype == torch.float32 else {"rtol": 0.02, "atol": 0.05}
    assert mine.dtype == dtype
    torch.testing.assert_close(mine.double(), expected, **close)
    weights = torch.linspace(-1, 2, expected.numel(), dtype=torch.float64).view(expected.shape)
    (mine.double() * weights).sum().backward()
    wanted = torch.autograd.grad((expected * weights).sum(), leaves)
    found = [half.grad for adapter in adapters.values() for half in (adapter.a, adapter.b)]
    for gradient, right in zip(found, wanted, strict=True):
        assert gradient is not None
        torch.testing.assert_close(gradient.double(), right, **close)


def test_a_saved_adapter_loads_as_it_was(tuned: Backbone, random_model: Path, tmp_path: Path) -> None:
    save_adapter(tuned.adapters("two"), LORA["two"], str(random_model), tmp_path)
    assert read_lora_settings(tmp_path).rank == 8
    before = {n: (a.a.clone(), a.b.clone()) for n, a in tuned.adapters("two").items()}
    with torch.no_grad():
        for adapter in tuned.adapters("two").values():
            adapter.b.zero_()
    load_adapter(tuned, "two", tmp_path)
    for name, adapter in tuned.adapters("two").items():
        assert torch.equal(adapter.a, before[name][0])
        assert torch.equal(adapter.b, before[name][1])


def test_a_configuration_is_the_same_to_the_byte_whatever_process_writes_it(tmp_path: Path) -> None:
    targets = ("v_proj", "q_proj", "up_proj", "o_proj", "k_proj", "gate_proj", "down_proj")
    save_adapter({}, LoraSettings(target_modules=targets), "base", tmp_path)
    assert json.loads((tmp_path / "adapter_config.json").read_text())["target_modules"] == list(targets)


@pytest.mark.parametrize("targets", ["all-linear", ["q_proj", "down_proj"], r".*self_attn\.(q|v)_proj"])
@pytest.mark.parametrize("rslora", [False, True])
def test_an_adapter_that_peft_made_is_read_as_peft_reads_it(
    backbone: Backbone, random_model: Path, tmp_path: Path, targets: str | list[str], rslora: bool
) -> None:
    """All linear layers, a pattern or names; the change counted alpha / r or alpha / √r times; dropout of no meaning."""
    base = AutoModelForCausalLM.from_pretrained(random_model, dtype=torch.float32)
    config = LoraConfig(
        r=5, lora_alpha=3, target_modules=targets, use_rslora=rslora, lora_dropout=0.3, task_type="CAUSAL_LM"
    )
    other = get_peft_model(base, config).eval()
    for name, parameter in other.named_parameters():
        if "lora_B" in name:
            torch.nn.init.normal_(parameter, std=0.3)
    other.save_pretrained(tmp_path)
    change = json.loads((tmp_path / "adapter_config.json").read_text()) | {"target_modules": targets}
    (tmp_path / "adapter_config.json").write_text(json.dumps(change))
    lora = read_lora_settings(tmp_path)
    backbone.add_adapter("read", lora.rank, lora.alpha, lora.target_modules, seed=0)
    load_adapter(backbone, "read", tmp_path)
    with torch.no_grad():
        theirs = torch.cat([other(torch.from_numpy(row).long()[None]).logits[0] for row in ROWS])
        mine = (
            backbone.hidden_states(PackedRows.from_rows(ROWS, ["read"] * 3, backbone.device)) @ backbone.head.weight.T
        )
    torch.testing.assert_close(mine, theirs, rtol=1e-4, atol=1e-4)


def made_by_peft(model: Path, folder: Path, **config: Any) -> PeftModel:
    """An adapter that says something, as peft saves it; in float64, of weights that float32 holds."""
    torch.manual_seed(4)
    base = AutoModelForCausalLM.from_pretrained(model, dtype=torch.float32)
    plain = {"r": 4, "lora_alpha": 5, "target_modules": ["q_proj", "v_proj"], "task_type": "CAUSAL_LM"}
    other = get_peft_model(base, LoraConfig(**plain | config)).eval()
    for name, parameter in other.named_parameters():
        if "lora_" in name:
            torch.nn.init.normal_(parameter, std=0.3)
    other.save_pretrained(folder)
    return other.double()


def norms_in_float64(model: nn.Module) -> None:
    """Take the RMS norms of a model in float64, where Transformers' own round to float32."""
    for norm in model.modules():
        if type(norm).__name__.endswith("RMSNorm"):
            norm.forward = partial(exact_norm, norm)  # type: ignore[method-assign]


def exact_norm(norm: Any, x: torch.Tensor) -> torch.Tensor:
    return norm.weight * x * (x.square().mean(-1, keepdim=True) + norm.variance_epsilon).rsqrt()


def decoded(backbone: Backbone, policy: str) -> torch.Tensor:
    """Hidden states of the last token of each row, after a prefill of those before it."""
    cache = KVCache(backbone.num_layers)
    cache.reserve(len(ROWS), 16)
    packed = PackedRows.from_rows([row[:-1] for row in ROWS], [policy] * len(ROWS), backbone.device)
    backbone.hidden_states(packed, PackedPlan(packed.lengths, backbone.device, cache, [[n] for n in range(len(ROWS))]))
    plan = DecodePlan(cache, packed.lengths, backbone.device)
    last = torch.tensor([int(row[-1]) for row in ROWS])
    return backbone.next_hidden_states(last, plan.lengths, [policy] * len(ROWS), plan)


def read_in_float64(backbone: Backbone, other: PeftModel, folder: Path) -> tuple[torch.Tensor, torch.Tensor]:
    """Logits of a policy that has the adapter of a folder, and peft's."""
    attach_adapter(backbone, "read", folder)
    backbone.model.double()
    for model in (backbone.model, other):
        norms_in_float64(model)
    mine = backbone.hidden_states(PackedRows.from_rows(ROWS, ["read"] * 3, backbone.device)) @ backbone.head.weight.T
    return mine, torch.cat([other(torch.from_numpy(row).long()[None]).logits[0] for row in ROWS])


LINEAR = ("q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj")
SAME = {"rtol": 1e-10, "atol": 1e-10}  # of float64


@pytest.mark.parametrize(
    ("fused", "targets"),
    [
        pytest.param(fused, targets, marks=() if targets == list(LINEAR) or (fused and len(targets) != 1) else BY_NIGHT)
        for fused in (True, False)
        for targets in (*([name] for name in LINEAR), list(LINEAR), "all-linear", ["self_attn.o_proj"])
    ],
)
def test_on_every_layer_of_the_decoder_learning_and_sampling_are_pefts(
    backbone: Backbone, random_model: Path, tmp_path: Path, targets: str | list[str], fused: bool
) -> None:
    """Log-probs, gradients, and the next token after a prompt that is kept in a cache."""
    other = made_by_peft(random_model, tmp_path, target_modules=targets)
    backbone.fused = fused
    mine, theirs = read_in_float64(backbone, other, tmp_path)
    torch.testing.assert_close(mine, theirs, **SAME)
    mine.log_softmax(-1)[:, 7].sum().backward()
    theirs.log_softmax(-1)[:, 7].sum().backward()
    gradients = {name.replace(".default", ""): p.grad for name, p in other.named_parameters() if p.grad is not None}
    for layer, adapter in backbone.adapters("read").items():
        for half, parameter in (("A", adapter.a), ("B", adapter.b)):
            expected = gradients.pop(f"base_model.model.{layer}.lora_{half}.weight")
            torch.testing.assert_close(parameter.grad, expected, **SAME)
    assert not gradients
    with torch.no_grad():
        ends = np.cumsum([len(row) for row in ROWS]) - 1
        torch.testing.assert_close(decoded(backbone, "read") @ backbone.head.weight.T, theirs[ends], **SAME)


NAMES = st.sampled_from(
    [*LINEAR, "self_attn.q_proj", "mlp.up_proj", "0.self_attn.q_proj", "layers.1.mlp.down_proj",
     "model.layers.1.self_attn.o_proj", "lm_head", "embed_tokens", "model.embed_tokens"]
)  # fmt: skip
PATTERNS = st.builds(
    "{}{}{}".format, st.sampled_from([".*", r".*layers\.0\..*", r".*layers\.\d+\.", r"model\.layers\.[01]\.", ""]),
    st.sampled_from([r"self_attn\.", r"mlp\.", r".*\.", "", r"(mlp|self_attn)\."]),
    st.sampled_from(["q_proj", "(q|v)_proj", ".*_proj", r"\w+_proj", "(up_proj|lm_head)", "embed_tokens", "(lm_head|norm)"]),
)  # fmt: skip
BESIDE: list[dict[str, Any]] = [
    {"r": 3}, {"use_rslora": True}, {"ensure_weight_tying": True}, {"layers_to_transform": 0}, {"layers_to_transform": [0, 1]},
    {"layers_to_transform": [1], "layers_pattern": "layers"}, {"exclude_modules": ["v_proj"]}, {"exclude_modules": ["lm_head"]},
    {"exclude_modules": r".*layers\.0.*"}, {"modules_to_save": ["norm"]}, {"rank_pattern": {"q_proj": 2}},
]  # fmt: skip
TARGETS = st.builds(
    lambda targets, beside: {"target_modules": targets, **beside},
    st.one_of(st.lists(NAMES, min_size=1, max_size=3, unique=True), PATTERNS, st.just("all-linear")),
    st.one_of(st.just({}), st.sampled_from(BESIDE)),
)


@pytest.fixture(scope="module")
def shared(random_model: Path) -> tuple[Backbone, nn.Module]:
    """A model of ours, and the same one for peft; no test leaves an adapter in either."""
    ours = load_backbone(ModelSettings(path=str(random_model)), torch.device("cpu"), torch.float32)
    return ours, AutoModelForCausalLM.from_pretrained(random_model, dtype=torch.float32)


@settings(max_examples=by_day(6, MANY))
@example(config={"target_modules": ["q_proj", "lm_head"]}, as_given=True)
@given(config=TARGETS, as_given=st.booleans())
def test_whatever_peft_takes_as_targets_is_computed_on_all_of_them_or_refused(
    shared: tuple[Backbone, nn.Module], config: dict[str, Any], as_given: bool
) -> None:
    """As a file names them, resolved by peft or as they were given; and in a recipe."""
    ours, base = shared
    torch.manual_seed(4)
    try:
        other = get_peft_model(copy.deepcopy(base), LoraConfig(task_type="CAUSAL_LM", **config)).eval()
    except (ValueError, AttributeError, TypeError):
        assume(False)
    for name, parameter in other.named_parameters():
        if "lora_" in name:
            torch.nn.init.normal_(parameter, std=0.3)
    sized = {
        name.removeprefix("base_model.model.") for name, layer in other.named_modules() if isinstance(layer, LoraLayer)
    }
    targets = config["target_modules"]
    with TemporaryDirectory() as folder:
        other.save_pretrained(folder, save_embedding_layers=False)
        if as_given:
            file = Path(folder, "adapter_config.json")
            file.write_text(json.dumps(json.loads(file.read_text()) | {"target_modules": targets}))
        try:
            attach_adapter(ours, "read", Path(folder))
        except ValueError:
            event("refused")
        else:
            event("computed")
            assert set(ours.adapters("read")) == sized
            with torch.no_grad():
                theirs = torch.cat([other(torch.from_numpy(row).long()[None]).logits[0] for row in ROWS])
                mine = hidden(ours, ["read"] * 3) @ ours.head.weight.T
            torch.testing.assert_close(mine.log_softmax(-1), theirs.log_softmax(-1), rtol=1e-4, atol=1e-3)
        finally:
            ours.remove_adapter("read")
    if isinstance(targets, list) and set(config) <= {"target_modules", "r", "use_rslora"}:
        try:
            named = set(ours.target_layers("read", LoraSettings(target_modules=tuple(targets)).target_modules))
        except ValueError:
            return
        assert named == sized


COMPUTED: list[dict[str, Any]] = [
    *({"init_lora_weights": start} for start in (True, False, "gaussian", "orthogonal", "mica", "eva")),
    {"r": 64}, {"lora_alpha": 2.5}, {"lora_dropout": 0.5}, {"use_rslora": True}, {"ensure_weight_tying": True},
    {"fan_in_fan_out": True}, {"layers_pattern": None}, {"target_modules": None},
    {"target_modules": r".*(q|o|up)_proj"}, {"target_modules": ["0.self_attn.q_proj"]},
    {"target_modules": ["model.layers.1.mlp.up_proj", "v_proj"]},
]  # fmt: skip
REFUSED: list[tuple[dict[str, Any], str]] = [
    *(({"init_lora_weights": start}, f"was begun with {start}") for start in ("olora", "pissa", "pissa_niter_2")),
    *(({"bias": bias}, "asks for bias") for bias in ("all", "lora_only")),
    *(({"modules_to_save": [name]}, "asks for modules_to_save") for name in ("lm_head", "embed_tokens", "norm")),
    *(({"layers_to_transform": layers}, "asks for layers_to_transform") for layers in (0, 1, [1], [0, 1])),
    ({"layers_to_transform": [0], "layers_pattern": "layers"}, "asks for layers_to_transform"),
    *(({"exclude_modules": names}, "asks for exclude_modules") for names in (["v_proj"], r".*layers\.0.*")),
    *(({"trainable_token_indices": these}, "asks for trainable_token") for these in ([1], {"embed_tokens": [1]})),
    ({"rank_pattern": {"q_proj": 2}}, "asks for rank_pattern"),
    ({"alpha_pattern": {"q_proj": 2}}, "asks for alpha_pattern"),
    ({"use_dora": True}, "asks for use_dora"),
    ({"use_qalora": True, "qalora_group_size": 16}, "asks for use_qalora"),
    ({"lora_bias": True}, "asks for lora_bias"),
    ({"velora_config": {}}, "asks for velora_config"),
    ({"monteclora_config": {}}, "asks for monteclora_config"),
    ({"kasa_config": {}}, "asks for kasa_config"),
    ({"use_bdlora": {"target_modules_bd_a": ["q_proj"], "nblocks": 2, "match_strict": False}}, "asks for use_bdlora"),
    ({"alora_invocation_tokens": [3]}, "asks for alora_invocation_tokens"),
    ({"layer_replication": [(0, 2), (1, 2)]}, "asks for layer_replication"),
    ({"target_parameters": ["up_proj.weight"]}, "asks for target_parameters"),
    ({"target_parameters": ["up_proj.weight"], "target_modules": []}, "asks for target_parameters"),
    ({"target_modules": r".*layers\.0\.self_attn\.q_proj"}, r"other layers: missing .*layers\.1\.self_attn\.q_proj"),
    *(({"target_modules": [name], "ensure_weight_tying": tied}, "an output layer or an embedding")
      for name in ("lm_head", "embed_tokens") for tied in (False, True)),
]  # fmt: skip


@pytest.mark.parametrize("config", some(COMPUTED), ids=str)
def test_what_peft_computes_as_plain_lora_is_computed_as_peft_does(
    backbone: Backbone, random_model: Path, tmp_path: Path, config: dict[str, Any]
) -> None:
    mine, theirs = read_in_float64(backbone, made_by_peft(random_model, tmp_path, **config), tmp_path)
    torch.testing.assert_close(mine, theirs, **SAME)


@pytest.mark.parametrize(("config", "reason"), some(REFUSED), ids=str)
def test_what_peft_computes_otherwise_is_refused_by_name(
    backbone: Backbone, random_model: Path, tmp_path: Path, config: dict[str, Any], reason: str
) -> None:
    made_by_peft(random_model, tmp_path, **config)
    with pytest.raises(ValueError, match=reason):
        attach_adapter(backbone, "read", tmp_path)
    assert not backbone.layers


def test_each_field_of_pefts_configuration_is_computed_or_refused_or_of_no_meaning() -> None:
    """A field that a new version of peft brings is none of it until it is tried."""
    tried = {key for config in (*COMPUTED, *(config for config, _ in REFUSED)) for key in config}
    known = tried | {*ANOTHER_COMPUTATION, *IGNORED_KEYS, "peft_type"}
    assert {field.name for field in fields(LoraConfig)} <= known


@pytest.mark.parametrize(
    "targets",
    [["lm_head"], ["q_proj", "lm_head"], ["embed_tokens"], r".*(v_proj|lm_head)", ["model.embed_tokens", "v_proj"]],
)
def test_an_adapter_on_the_output_layer_or_the_embedding_is_refused_by_name(
    random_model: Path, tmp_path: Path, targets: str | list[str]
) -> None:
    """Of an adapter that is read, and of a recipe; neither is computed, so neither is ignored."""
    made_by_peft(random_model, tmp_path, target_modules=targets)
    with pytest.raises(ValueError, match=r"changes .*(lm_head|embed_tokens).*merge it into the base"):
        read_lora_settings(tmp_path)
    if isinstance(targets, list):
        with pytest.raises(
            ValueError, match=r"(lm_head|embed_tokens)' is an output layer or an embedding.*leave it out"
        ):
            LoraSettings(target_modules=tuple(targets))


@pytest.mark.parametrize("target", ["lm_head", "embed_tokens", "model.norm", "layers"])
def test_what_is_no_linear_layer_of_the_decoder_is_refused_by_what_it_is(backbone: Backbone, target: str) -> None:
    """Whatever it is called: a target that comes with no recipe meets the model itself."""
    kind = type(backbone.model.get_submodule({"lm_head": "lm_head"}.get(target, f"model.{target.split('.')[-1]}")))
    with pytest.raises(ValueError, match=rf"{kind.__name__}\), and adapters are computed on linear layers"):
        backbone.add_adapter("new", 4, 16.0, ("q_proj", target), seed=0)
    assert not backbone.layers


def test_weights_that_an_adapter_holds_whole_are_refused(tuned: Backbone, tmp_path: Path) -> None:
    save_adapter(tuned.adapters("one"), LORA["one"], "base", tmp_path)
    tensors = load_file(tmp_path / "adapter_model.safetensors")
    save_file(tensors | {"base_model.model.lm_head.weight": torch.ones(2, 2)}, tmp_path / "adapter_model.safetensors")
    with pytest.raises(ValueError, match=r"holds whole weights, base_model\.model\.lm_head\.weight"):
        load_adapter(tuned, "one", tmp_path)


def test_what_pefts_own_configuration_says_by_default_is_plain_lora(tmp_path: Path) -> None:
    LoraConfig(r=3, lora_alpha=5, target_modules=["q_proj"], task_type="CAUSAL_LM").save_pretrained(str(tmp_path))
    assert read_lora_settings(tmp_path) == LoraSettings(rank=3, alpha=5.0, target_modules=("q_proj",))


ANOTHER_COMPUTATION: dict[str, object] = {
    "alpha_pattern": {"q_proj": 3}, "rank_pattern": {"q_proj": 2}, "fan_in_fan_out": True, "bias": "all",
    "lora_bias": True, "layers_to_transform": 0, "exclude_modules": ["v_proj"], "use_dora": True, "modules_to_save": ["lm_head"],
    "trainable_token_indices": [1], "layer_replication": [[0, 1]],
    "alora_invocation_tokens": [1], "use_qalora": True, "arrow_config": {"top_k": 2},
}  # fmt: skip


@pytest.mark.parametrize("key", ANOTHER_COMPUTATION)
def test_an_adapter_that_asks_for_another_computation_is_refused_by_what_it_asks_for(
    tuned: Backbone, key: str, tmp_path: Path
) -> None:
    """Read as plain LoRA it would compute something else than where it was trained."""
    save_adapter(tuned.adapters("one"), LORA["one"], "base", tmp_path)
    config = json.loads((tmp_path / "adapter_config.json").read_text())
    (tmp_path / "adapter_config.json").write_text(json.dumps({**config, key: ANOTHER_COMPUTATION[key]}))
    with pytest.raises(ValueError, match=f"asks for {key}"):
        read_lora_settings(tmp_path)


def test_an_adapter_that_does_not_fit_is_refused_with_the_remedy(
    tuned: Backbone, random_model: Path, tmp_path: Path
) -> None:
    save_adapter(tuned.adapters("one"), LORA["one"], str(random_model), tmp_path)
    with pytest.raises(ValueError, match=r"set lora\.target_modules"):
        load_adapter(tuned, "two", tmp_path)
    (tmp_path / "adapter_model.safetensors").write_bytes(b"nonsense")
    with pytest.raises(ValueError, match="cannot read the adapter"):
        load_adapter(tuned, "one", tmp_path)


@pytest.mark.parametrize("policies", [(), ("one",)])
def test_an_unknown_target_names_the_known_ones(backbone: Backbone, policies: tuple[str, ...]) -> None:
    """Those of the model itself, whether or not a policy has adapters on them."""
    for policy in policies:
        backbone.add_adapter(policy, 4, 16.0, ("q_proj", "v_proj"), seed=0)
    known = "down_proj, gate_proj, k_proj, o_proj, q_proj, up_proj, v_proj"
    for target in ("q_prj", "base"):
        with pytest.raises(ValueError, match=f"no layer is called '{target}'; name some of {known}$"):
            backbone.add_adapter("new", 4, 16.0, (target,), seed=0)


def test_an_adapter_that_is_removed_is_gone_from_every_layer_and_no_other_is(tuned: Backbone) -> None:
    before = hidden(tuned, [None, "two", None])
    tuned.remove_adapter("one")
    assert not tuned.adapters("one")
    assert tuned.adapters("two")
    assert torch.equal(hidden(tuned, ["one", "two", None]), before)


def hidden(backbone: Backbone, policies: list[str | None]) -> torch.Tensor:
    with torch.inference_mode():
        return backbone.hidden_states(PackedRows.from_rows(ROWS, policies, backbone.device))
