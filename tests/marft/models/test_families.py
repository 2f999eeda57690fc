"""Every supported family: MARFT's forward, gradients, decoding and adapters against transformers and peft."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from peft import PeftModel
from tools import model_families
from tools.model_families import linear_layer_names
from torch import Tensor, nn
from transformers import AutoModelForCausalLM, PreTrainedModel

from marft.common.types import TokenIds
from marft.config.models import LoraSettings, ModelSettings
from marft.models.adapter_files import save_adapter
from marft.models.backbone import Backbone
from marft.models.decode_cache import new_decode_cache
from marft.models.loader import load_backbone
from marft.models.log_probs import score_tokens
from marft.models.packed_rows import PackedRows
from tests.families import FAMILY, LEFT_OUT, OWN, PACKED, RECURRENT, random_model
from tests.nights import BY_NIGHT, some

ROWS = [(np.arange(2, n + 2) ** 3 * 7 % 96).astype(np.int32) for n in (3, 23, 11)]
CPU = torch.device("cpu")
FAST = ("Qwen 2", "Gemma 2", "gpt-oss", "Granite 4 hybrid")


def each(*names: str) -> list[Any]:
    return [pytest.param(name, marks=() if name in FAST else pytest.mark.slow) for name in names]


def part(*names: str) -> list[Any]:
    """The fast ones and a part of the others, of whose forwards all are compared anyway."""
    slow = [name for name in names if name not in FAST]
    return each(*(name for name in names if name in {*FAST, *some(slow)}))


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    return {name: tmp_path_factory.mktemp("family") for name in FAMILY}


def folder_of(folders: dict[str, Path], name: str) -> Path:
    folder = folders[name]
    return folder if (folder / "config.json").is_file() else random_model(FAMILY[name].small_config(), folder)


def ours(folder: Path, dtype: torch.dtype) -> Backbone:
    return load_backbone(ModelSettings(path=str(folder)), CPU, dtype)


def theirs(folder: Path, dtype: torch.dtype) -> PreTrainedModel:
    model: PreTrainedModel = AutoModelForCausalLM.from_pretrained(folder, dtype=dtype, attn_implementation="eager")
    return model.eval()


def scored(backbone: Backbone, policy: str | None = None) -> Tensor:
    """Log-probs of all tokens but the first of each row, [N − B]."""
    packed = PackedRows.from_rows(ROWS, [policy] * len(ROWS), CPU)
    ends = torch.tensor(packed.lengths).cumsum(0) - 1
    keep = torch.ones(len(packed.ids), dtype=torch.bool).index_fill(0, ends, False)
    targets = torch.from_numpy(np.concatenate([row[1:] for row in ROWS])).long()
    hidden = backbone.hidden_states(packed)[keep]
    return score_tokens(hidden, backbone.output_head, targets, None).log_probs


def expected(model: nn.Module, rows: Sequence[TokenIds] = ROWS) -> Tensor:
    """As :func:`scored`, row by row with transformers' own forward and logits."""
    parts = []
    for row in rows:
        ids = torch.from_numpy(row).long()
        logits = model(input_ids=ids[None], use_cache=False).logits[0, :-1].float()
        parts.append(logits.log_softmax(-1).gather(1, ids[1:, None])[:, 0])
    return torch.cat(parts)


def gradients(log_probs: Tensor, model: nn.Module) -> dict[str, Tensor]:
    model.zero_grad()
    (log_probs * torch.linspace(-1, 2, len(log_probs))).sum().backward()
    return {name: p.grad.float() for name, p in model.named_parameters() if p.grad is not None}


@pytest.mark.parametrize("name", each(*PACKED, *OWN))
def test_log_probs_and_every_gradient_are_transformers(name: str, folders: dict[str, Path]) -> None:
    folder = folder_of(folders, name)
    backbone, model = ours(folder, torch.float32), theirs(folder, torch.float32)
    backbone.model.requires_grad_(True)
    mine, other = scored(backbone), expected(model)
    torch.testing.assert_close(mine, other, rtol=0, atol=1e-4)
    found, wanted = gradients(mine, backbone.model), gradients(other, model)
    assert found.keys() == wanted.keys()
    for layer, gradient in wanted.items():
        scale = gradient.abs().max() + 1e-6
        torch.testing.assert_close(found[layer] / scale, gradient / scale, rtol=0, atol=2e-3)


@pytest.mark.parametrize("name", part(*PACKED))
def test_half_precision_is_as_near_the_truth_as_transformers_is(name: str, folders: dict[str, Path]) -> None:
    """The truth is float32 arithmetic on the rounded weights. Recurrent layers amplify rounding, for better or worse."""
    folder = folder_of(folders, name)
    backbone, model = ours(folder, torch.bfloat16), theirs(folder, torch.bfloat16)
    exact = theirs(folder, torch.bfloat16).float()
    backbone.model.requires_grad_(True)
    (mine, found), (other, also), (truth, wanted) = (
        (log_probs, gradients(log_probs, of))
        for log_probs, of in (
            (scored(backbone), backbone.model), (expected(model), model), (expected(exact), exact),
        )
    )  # fmt: skip
    assert backbone.fp32_residual
    factor = 3 if name in RECURRENT else 1.25
    assert (mine - truth).abs().mean() < factor * (other - truth).abs().mean() + 0.01
    assert _distance(found, wanted) < factor * _distance(also, wanted) + 0.01


def _distance(found: dict[str, Tensor], wanted: dict[str, Tensor]) -> float:
    mine, right = (torch.cat([table[name].flatten() for name in wanted]) for table in (found, wanted))
    return float((mine - right).norm() / right.norm())


@pytest.mark.parametrize("dtype", some([torch.float32, torch.bfloat16], 2), ids=str)
@pytest.mark.parametrize("name", part(*PACKED, *OWN))
def test_decoding_gives_what_the_whole_row_gives(name: str, dtype: torch.dtype, folders: dict[str, Path]) -> None:
    backbone = ours(folder_of(folders, name), dtype)
    with torch.inference_mode():
        whole = backbone.compute_logits(
            backbone.hidden_states(PackedRows.from_rows(ROWS, [None] * 3, CPU)), None
        ).log_softmax(-1)
        decoded = decode(backbone, [len(row) // 3 for row in ROWS])
    likely = whole.topk(8).indices
    difference = (decoded.gather(1, likely) - whole.gather(1, likely)).abs()
    assert difference.max() < 1e-3 if dtype == torch.float32 else difference.mean() < 0.05


def decode(backbone: Backbone, prompts: Sequence[int]) -> Tensor:
    """Log-probs at every place: prompts of these lengths are prefilled, all other tokens come one at a time."""
    running = new_decode_cache(backbone)
    packed = PackedRows.from_rows([row[:n] for row, n in zip(ROWS, prompts, strict=True)], [None] * 3, CPU)
    found = [list(part) for part in running.prefill(packed, [[0], [1], [2]]).split(packed.lengths)]
    lengths = packed.lengths
    while any(len(states) < len(row) for states, row in zip(found, ROWS, strict=True)):
        last = torch.tensor([int(row[min(n, len(row) - 1)]) for row, n in zip(ROWS, lengths, strict=True)])
        states = running.step(last, lengths, [None] * 3)
        for kept, state, row in zip(found, states, ROWS, strict=True):
            kept.extend([state] if len(kept) < len(row) else [])
        lengths = [length + 1 for length in lengths]
    return backbone.compute_logits(torch.stack([state for states in found for state in states]), None).log_softmax(-1)


@pytest.mark.parametrize("name", part(*(name for name in (*PACKED, *OWN) if name != "GPT-2")))
def test_adapters_on_all_linear_layers_are_pefts(name: str, folders: dict[str, Path], tmp_path: Path) -> None:
    folder = folder_of(folders, name)
    backbone = ours(folder, torch.float32)
    targets = set(linear_layer_names(backbone)) - LEFT_OUT.get(name, set())
    lora = LoraSettings(rank=3, alpha=6.0, target_modules=tuple(sorted(targets)))
    backbone.add_adapter("one", lora.rank, lora.alpha, lora.target_modules, seed=0)
    for adapter in backbone.adapters("one").values():
        nn.init.normal_(adapter.b, std=0.1)
    save_adapter(backbone.adapters("one"), lora, str(folder), tmp_path)
    other = PeftModel.from_pretrained(theirs(folder, torch.float32), str(tmp_path), is_trainable=True).eval()
    mine, wanted = scored(backbone, "one"), expected(other)
    assert (mine - scored(backbone)).abs().max() > 0.01
    torch.testing.assert_close(mine, wanted, rtol=0, atol=1e-4)
    gradients(mine, backbone.model)
    table = gradients(wanted, other)
    for layer, adapter in backbone.adapters("one").items():
        for half, parameter in (("A", adapter.a), ("B", adapter.b)):
            gradient = table.pop(f"base_model.model.{layer}.lora_{half}.default.weight")
            scale = gradient.abs().max() + 1e-6
            torch.testing.assert_close(parameter.grad / scale, gradient / scale, rtol=0, atol=2e-3)
    assert not table


@BY_NIGHT
@pytest.mark.slow
def test_the_table_of_families_is_what_the_models_say() -> None:
    assert model_families.render_page() == model_families.DOCS_PAGE.read_text(encoding="utf-8"), (
        "run python tools/model_families.py"
    )


def test_every_family_that_the_table_says_is_packed_or_its_own_is_one() -> None:
    lines = [
        line.split("|")
        for line in model_families.DOCS_PAGE.read_text(encoding="utf-8").splitlines()
        if line.count("|") == 6
    ]
    said = {cells[1].strip(): cells[3].strip() for cells in lines}
    assert all(said[name] in ("packed", "packed, fused") for name in PACKED)
    assert all(said[name] == "its own" for name in OWN)
