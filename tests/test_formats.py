"""A model's format is read without its weights, and is what its weights say."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

from marft.config.models import ModelSettings
from marft.models.formats import load_format
from marft.models.loading import load_backbone, pick_device, pick_dtype
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
        ModelSettings(path="tiny", context=100),
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
    with pytest.raises(ValueError, match="context 513 is more than the 512 tokens"):
        load_format(settings(model, models={"base": {"path": str(model), "context": 513}}).models["base"])
