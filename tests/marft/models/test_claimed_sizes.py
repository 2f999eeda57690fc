"""An adapter takes memory once its claims are the sizes of the model, and not before."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import save_file

from marft.config.bundled import resolve_path
from marft.config.models import LoraSettings, ModelSettings
from marft.models.adapter_files import CONFIG_FILE, WEIGHTS_FILE, attach_adapter, load_adapter, save_adapter
from marft.models.backbone import Backbone
from marft.models.checkpoint_checks import MAX_SIZES
from marft.models.loader import load_backbone
from marft.models.lora import Adapter
from tests.families import FAMILY, random_model

LORA = LoraSettings(rank=4, alpha=8.0, target_modules=("q_proj", "v_proj"))
HUGE = 10**9
Change = Callable[[Path], None]


@pytest.fixture(scope="module")
def saved(tmp_path_factory: pytest.TempPathFactory) -> Path:
    backbone = loaded()
    backbone.add_adapter("actor", LORA.rank, LORA.alpha, LORA.target_modules, 0)
    folder = tmp_path_factory.mktemp("adapter")
    save_adapter(backbone.adapters("actor"), LORA, "tiny", folder)
    return folder


def loaded() -> Backbone:
    return load_backbone(ModelSettings(path="tiny"), torch.device("cpu"), torch.float32)


def says(**keys: object) -> Change:
    def change(folder: Path) -> None:
        file = folder / CONFIG_FILE
        file.write_text(json.dumps({**json.loads(file.read_text()), **keys}))

    return change


def claims(shape: tuple[int, int]) -> Change:
    """A file of holes, whose header claims a tensor of this shape under the name of each half."""

    def change(folder: Path) -> None:
        names = [name for name in header(folder / WEIGHTS_FILE) if name != "__metadata__"]
        size = shape[0] * shape[1] * 4
        table = {
            name: {"dtype": "F32", "shape": list(shape), "data_offsets": [at * size, (at + 1) * size]}
            for at, name in enumerate(names)
        }
        text = json.dumps(table).encode()
        with (folder / WEIGHTS_FILE).open("wb") as file:
            file.write(len(text).to_bytes(8, "little") + text)
            file.truncate(8 + len(text) + size * len(names))

    return change


def header(file: Path) -> dict[str, Any]:
    data = file.read_bytes()
    return dict(json.loads(data[8 : 8 + int.from_bytes(data[:8], "little")]))


def fewer_layers(folder: Path) -> None:
    save_file({"base_model.model.other.lora_A.weight": torch.zeros(4, 4)}, folder / WEIGHTS_FILE)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ([says(r=HUGE)], rf"says r = {HUGE}, and no layer has"),
        ([says(r=1000)], "says r = 1000, and .* has 128 inputs"),
        ([says(r=HUGE, target_modules="all-linear")], rf"says r = {HUGE}, and"),
        ([says(r=HUGE), claims((HUGE, 128))], rf"says r = {HUGE}, and"),
        ([says(r=129)], "says r = 129, and"),
        ([says(r=64)], r"has shape \(4, 128\) where \(64, 128\) is needed"),
        ([claims((10**6, 128))], r"has shape \(1000000, 128\) where \(4, 128\) is needed"),
        ([claims((4, 10**6))], r"has shape \(4, 1000000\) where"),
        ([fewer_layers], "is for other layers"),
    ],
)
def test_a_claim_that_the_model_does_not_have_is_refused_first(
    changes: list[Change], message: str, saved: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for file in saved.iterdir():
        (tmp_path / file.name).write_bytes(file.read_bytes())
    for change in changes:
        change(tmp_path)
    backbone = loaded()
    monkeypatch.setattr(Adapter, "__init__", lambda *_: pytest.fail("memory was taken"))
    monkeypatch.setattr("marft.models.adapter_files.load_file", lambda *_: pytest.fail("memory was taken"))
    with pytest.raises(ValueError, match=message):
        attach_adapter(backbone, "actor", tmp_path)


def test_weights_of_a_checkpoint_are_compared_first_too(
    saved: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / WEIGHTS_FILE).write_bytes((saved / WEIGHTS_FILE).read_bytes())
    claims((10**6, 128))(tmp_path)
    backbone = loaded()
    backbone.add_adapter("actor", LORA.rank, LORA.alpha, LORA.target_modules, 0)
    monkeypatch.setattr("marft.models.adapter_files.load_file", lambda *_: pytest.fail("memory was taken"))
    with pytest.raises(ValueError, match="has shape"):
        load_adapter(backbone, "actor", tmp_path)


def config_of(folder: Path, **keys: object) -> Path:
    """A copy of the bundled model whose configuration says something else."""
    for file in Path(resolve_path("tiny")).iterdir():
        (folder / file.name).write_bytes(file.read_bytes())
    file = folder / "config.json"
    file.write_text(json.dumps({**json.loads(file.read_text()), **keys}))
    return folder


@pytest.mark.parametrize(
    ("key", "value", "message"),
    [
        *((name, 10**12, rf"config\.json says {name} = {10**12}, and \d+ is the most") for name in MAX_SIZES),
        ("num_hidden_layers", 9_000, r"says num_hidden_layers = 9000, and model\.safetensors has weights of \d+"),
        ("num_hidden_layers", 5, "says num_hidden_layers = 5"),
        ("hidden_size", 2**19, r"model\.safetensors: .* asks for .*hidden_size = 524288"),
        ("vocab_size", 2**23, r"model\.safetensors: .*embed_tokens.* asks for .*vocab_size = 8388608"),
        ("intermediate_size", 2**23, r"model\.safetensors: .*mlp.* asks for .*intermediate_size = 8388608"),
        ("num_attention_heads", 2**15, r"model\.safetensors: .* asks for .*num_attention_heads = 32768"),
        ("head_dim", 2**15, r"model\.safetensors: .* asks for .*head_dim = 32768"),
    ],
)
def test_a_model_is_compared_with_its_files_before_memory_is_taken(
    key: str, value: int, message: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(
        "marft.models.loader.AutoModelForCausalLM.from_pretrained", lambda *_, **__: pytest.fail("memory was taken")
    )
    more: dict[str, object] = {"layer_types": None} if "layer" in key else {}
    more |= {"num_key_value_heads": 1, "head_dim": 32} if key == "num_attention_heads" else {}
    with pytest.raises(ValueError, match=message):
        load_backbone(
            ModelSettings(path=str(config_of(tmp_path, **{key: value, **more}))), torch.device("cpu"), torch.float32
        )


def test_experts_that_no_file_has_take_no_memory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = random_model(FAMILY["Qwen 3 with experts"].small_config(), tmp_path)
    file = folder / "config.json"
    file.write_text(json.dumps({**json.loads(file.read_text()), "num_local_experts": 5000}))
    monkeypatch.setattr(
        "marft.models.loader.AutoModelForCausalLM.from_pretrained", lambda *_, **__: pytest.fail("memory was taken")
    )
    with pytest.raises(
        ValueError,
        match=r"(num_local_experts = 5000.*model\.safetensors)|(model\.safetensors: .*num_local_experts = 5000)",
    ):
        load_backbone(ModelSettings(path=str(folder)), torch.device("cpu"), torch.float32)


def test_what_was_saved_is_read(saved: Path) -> None:
    backbone = loaded()
    assert attach_adapter(backbone, "actor", saved) == LORA
    assert set(backbone.adapters("actor")) == set(backbone.target_layers("actor", LORA.target_modules))
