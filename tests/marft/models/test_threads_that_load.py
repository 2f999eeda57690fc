"""Runs in several threads of one process load their models one after another."""

from __future__ import annotations

import threading
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
import torch

from marft.config import RunSettings
from marft.models import loader
from marft.models.critic import ValueHead
from marft.models.policy_registry import PolicyRegistry
from marft.runs.run_folder import RunFolder
from marft.trainer.train import train
from tests.helpers import settings
from tests.runs import Listening


def test_models_are_loaded_by_one_thread_at_a_time(monkeypatch: pytest.MonkeyPatch) -> None:
    whole, together, most = loader.AutoModelForCausalLM.from_pretrained, [0], [0]

    def watched(*arguments: Any, **options: Any) -> Any:
        together[0] += 1
        most[0] = max(most[0], together[0])
        time.sleep(0.05)
        try:
            return whole(*arguments, **options)
        finally:
            together[0] -= 1

    monkeypatch.setattr(loader.AutoModelForCausalLM, "from_pretrained", watched)
    run = settings("tiny", "runs", "--models.base.dtype", "bfloat16")
    with ThreadPoolExecutor(3) as threads:
        models = list(threads.map(lambda _: PolicyRegistry(run), range(3)))
    assert most == [1]
    weights = [each.policies["actor"].backbone.head.weight for each in models]
    assert all(torch.equal(weights[0], other) for other in weights)
    assert torch.get_default_dtype() == torch.float32


def test_a_critic_is_made_whole_while_another_thread_loads(monkeypatch: pytest.MonkeyPatch) -> None:
    loads, go_on = threading.Event(), threading.Event()
    whole = loader.AutoModelForCausalLM.from_pretrained

    def slow(*arguments: Any, **options: Any) -> Any:
        with monkeypatch.context() as changed:
            changed.setattr(torch.nn.init, "orthogonal_", lambda weight, **_: weight)  # as transformers does
            loads.set()
            go_on.wait(0.2)
        return whole(*arguments, **options)

    monkeypatch.setattr(loader.AutoModelForCausalLM, "from_pretrained", slow)
    alone = ValueHead(8, 4, seed=1).state_dict()
    with ThreadPoolExecutor(2) as threads:
        loading_one = threads.submit(PolicyRegistry, settings("tiny"))
        loads.wait(60)
        beside = threads.submit(ValueHead, 8, 4, 1).result().state_dict()
        go_on.set()
        loading_one.result()
    assert all(torch.equal(alone[name], beside[name]) for name in alone)


@pytest.mark.slow
def test_two_trainings_in_threads_learn_what_each_learns_alone_and_hear_only_their_own_notes(tmp_path: Path) -> None:
    idle = ("--algorithm.kl_stop", "0.1", "--algorithm.epochs", "1", "--algorithm.minibatches", "1")
    runs = [settings("tiny", tmp_path / place, "--training.steps", "1", *idle) for place in ("a", "b", "alone")]
    hearing = [Listening(), Listening()]

    def trained(run: RunSettings, heard: Listening) -> None:
        train(run, RunFolder(Path(run.output) / run.name), callbacks=[heard])

    with ThreadPoolExecutor(2) as threads:
        list(threads.map(trained, runs, hearing))
    assert [len(heard.notes) for heard in hearing] == [1, 1]
    train(runs[2], RunFolder(Path(runs[2].output) / runs[2].name))
    logs = [RunFolder(Path(run.output) / run.name).read_metrics()[0] for run in runs]
    assert len({row["reward"] for row in logs}) == 1
    assert len({row["gradient_norm"] for row in logs}) == 1
