"""Adapters of which B alone learns (FFA-LoRA): A stays to the bit, whatever happens, and takes no noise."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

from marft.models.policy_registry import PolicyRegistry
from marft.runs.run_folder import RunFolder
from marft.trainer.train import train
from marft_lab.federated.messages import Assignment, TrainRequest, pack_files, unpack_files
from marft_lab.federated.privacy import global_norm
from marft_lab.federated.site import SiteTrainer
from tests.helpers import settings
from tests.marft_lab.test_federated_sites import site_in
from tests.runs import finished

B_ALONE = ("--policies.reasoner.lora.trained_matrices", "B", "--policies.actor.lora.trained_matrices", "B")
REWARDED = "--rewards", "[{ name = 'format', pattern = '[0-4] ' }]", "--algorithm.optimizer.learning_rate", "0.02"
WEIGHTS = "adapter_model.safetensors"


def halves(folder: Path) -> tuple[dict[str, torch.Tensor], dict[str, torch.Tensor]]:
    """A and B of an adapter."""
    whole = load_file(folder / WEIGHTS)
    return tuple({n: t for n, t in whole.items() if f"lora_{half}" in n} for half in "AB")  # type: ignore[return-value]


def test_half_as_many_parameters_learn_and_no_gradient_is_made_for_the_others(tmp_path: Path) -> None:
    models = PolicyRegistry(settings("tiny", tmp_path, *B_ALONE))
    for name in ("reasoner", "actor"):
        policy = models.policies[name]
        assert policy.parameters()
        assert all(parameter.endswith("lora_B") for parameter in policy.parameters())
        for adapter in policy.backbone.adapters(name).values():
            assert (adapter.a.requires_grad, adapter.b.requires_grad) == (False, True)
    whole = PolicyRegistry(settings("tiny", tmp_path)).policies["actor"].parameters()
    assert len(whole) == 2 * len(models.policies["actor"].parameters())


@pytest.mark.slow
def test_a_stays_to_the_bit_and_b_learns(tmp_path: Path) -> None:
    run, folder = finished(tmp_path, *B_ALONE, *REWARDED)
    PolicyRegistry(run).save_policy("actor", tmp_path / "began")
    began, ended = (halves(one) for one in (tmp_path / "began", folder.saved_steps()[-1] / "policies" / "actor"))
    assert all(torch.equal(tensor, ended[0][name]) for name, tensor in began[0].items())
    assert not any(torch.equal(tensor, ended[1][name]) for name, tensor in began[1].items())
    stopped = tmp_path / "stopped"
    half = settings("tiny", stopped, *B_ALONE, *REWARDED, "--training.steps", "1")
    there = RunFolder.create(half)
    train(half, there)
    train(settings("tiny", stopped, *B_ALONE, *REWARDED), there, resume=True)
    again = halves(there.saved_steps()[-1] / "policies" / "actor")
    assert all(torch.equal(tensor, again[1][name]) for name, tensor in ended[1].items()), "it goes on to the bit"


@pytest.mark.slow
def test_noise_is_on_what_learns_alone(tmp_path: Path) -> None:
    recipe = site_in(tmp_path / "own", "north") / "recipe.toml"
    recipe.write_text(recipe.read_text().replace("alpha = 4 }", 'alpha = 4, trained_matrices = "B" }'))
    federation = {"id": "1", "seed": 0, "steps": 4, "clip": 0.5, "noise": 1.0, "counts": False}
    about = Assignment(
        {"name": "north", "folder": str(tmp_path / "n"), "recipe": str(recipe), "changes": {}}, federation
    )
    place = SiteTrainer(about, _place(tmp_path / "n"))
    began = unpack_files(place.initial_update())
    sent = unpack_files(place.train_round(TrainRequest(1, 2, *pack_files(began))))
    for name in began:
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_bytes(began[name])
        (tmp_path / "sent" / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / "sent" / name).write_bytes(sent[name])
    policies = {Path(name).parent for name in began}
    for policy in policies:
        (a, b), (sent_a, sent_b) = halves(tmp_path / policy), halves(tmp_path / "sent" / policy)
        assert all(torch.equal(tensor, sent_a[name]) for name, tensor in a.items())
        change = {name: sent_b[name] - tensor for name, tensor in b.items()}
        wanted = 0.5 * sum(tensor.numel() for tensor in b.values()) ** 0.5
        assert global_norm(change) == pytest.approx(wanted, rel=0.3), "clip 0.5, and noise of 0.5 on each number"


def _place(path: Path) -> object:
    from marft_lab.federated.site import SiteFolder

    path.mkdir()
    return SiteFolder(path)
