"""A model's format is read without its weights, and is what its weights say."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

from marft.config.models import ModelSettings
from marft.models import chat_templates
from marft.models.loader import load_backbone, pick_device, pick_dtype
from marft.models.tokenizer_format import load_format, load_tokenizer
from tests.helpers import settings


def declared(folder: Path, **ends: object) -> ModelSettings:
    """A model whose files name these ends of a turn."""
    for file, ids in ends.items():
        path = folder / f"{file}.json"
        table = json.loads(path.read_text()) if path.exists() else {}
        path.write_text(json.dumps({**table, "eos_token_id": ids}))
    return ModelSettings(path=str(folder))


@pytest.fixture
def model(random_model: Path, tmp_path: Path) -> Path:
    for file in random_model.iterdir():
        (tmp_path / file.name).write_bytes(file.read_bytes())
    return tmp_path


def test_a_format_has_the_models_own_context_and_ends_of_a_turn(model: Path) -> None:
    device = pick_device("cpu")
    for given in (
        ModelSettings(path="tiny"),
        ModelSettings(path="tiny", context_length=100),
        declared(model, config=[9, 4]),
        declared(model, generation_config=[8, 5, 100_000]),
    ):
        backbone, format = load_backbone(given, device, pick_dtype("auto", device)), load_format(given)
        ends = [backbone.model.config.eos_token_id, backbone.model.generation_config.eos_token_id]
        flat = [end for value in ends for end in np.atleast_1d(value).tolist()]
        expected = dict.fromkeys([format.tokenizer.eos_token_id, *flat])
        assert format.context == backbone.context
        assert format.stop_ids == tuple(end for end in expected if end < backbone.head.weight.shape[0])


def test_a_format_needs_no_weights(model: Path) -> None:
    before = load_format(ModelSettings(path=str(model)))
    for file in model.glob("*.safetensors"):
        file.unlink()
    after = load_format(ModelSettings(path=str(model)))
    assert (after.context, after.stop_ids) == (before.context, before.stop_ids)
    with pytest.raises(ValueError, match="context_length 513 is more than the 512 tokens"):
        load_format(settings(model, models={"base": {"path": str(model), "context_length": 513}}).models["base"])


@pytest.mark.parametrize("name", ["tokenizer.json missing", "no words"])
def test_a_tokenizer_that_reads_nothing_is_refused(model: Path, name: str) -> None:
    """transformers makes one of two tokens where the file is missing, and every prompt would be empty."""
    file = model / "tokenizer.json"
    table = json.loads(file.read_text())
    file.unlink()
    if name == "no words":
        table["model"] |= {"vocab": {}, "merges": []}
        file.write_text(json.dumps(table))
    with pytest.raises(ValueError, match=r"reads 'What is 12 \+ 34\?' as ''.*get the model again"):
        load_tokenizer(ModelSettings(path=str(model)))


@pytest.mark.parametrize(
    "said", ['{"eos_token_id": "x"}', '{"eos_token_id": [null]}', '{"eos_token_id": 1.5}', '{"eos_token_id": true}', "{not", "[" * 100_000]
)  # fmt: skip
def test_a_generation_config_that_says_nothing_is_refused_by_name(model: Path, said: str) -> None:
    (model / "generation_config.json").write_text(said)
    with pytest.raises(ValueError, match=r"generation_config.json.*correct it, or remove it"):
        load_format(ModelSettings(path=str(model)))


@pytest.mark.parametrize("said", [-1, [-5, 10**9], []])
def test_ids_that_no_model_has_end_no_turn(model: Path, said: object) -> None:
    without = load_format(declared(model, generation_config=None)).stop_ids
    assert load_format(declared(model, generation_config=said)).stop_ids == without


def test_what_a_template_does_after_the_last_turn_is_tried_out_too(
    model: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Ends of turns are read off there."""
    monkeypatch.setattr(chat_templates, "TIMEOUT_SECONDS", 0.3)
    shown = "{% for m in messages %}{{ m.content }}{% endfor %}{% if not add_generation_prompt %}"
    (model / "chat_template.jinja").write_text(f"{shown}{{{{ 1 / 0 }}}}{{% endif %}}")
    assert load_format(ModelSettings(path=str(model))).stop_ids
    loops = "{% for a in range(99999) %}{% for b in range(99999) %}{% endfor %}{% endfor %}{% endif %}"
    (model / "chat_template.jinja").write_text(shown + loops)
    with pytest.raises(ValueError, match="it loops"):
        load_format(ModelSettings(path=str(model)))
