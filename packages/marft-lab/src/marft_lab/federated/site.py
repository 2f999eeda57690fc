"""Process of a site: training on the site's own data, and exchange of adapters with the coordinator.

The process only reads its own folder and the files named in its recipe.
"""

from __future__ import annotations

import json
import os
import socket
import sys
import time
import traceback
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from marft.common import atomic
from marft.common.errors import RunError
from marft.common.observing import Observer
from marft.config.models import local_model
from marft.config.run import RunSettings
from marft.runs import lock
from marft.runs.checkpoints import Record
from marft.runs.going_on import resumed_or_started
from marft_lab.federated.parcels import files_with, opened, read_folder
from marft_lab.federated.place import Begun, Place
from marft_lab.federated.privacy import hidden
from marft_lab.federated.recipes import site_recipe
from marft_lab.federated.words import About, Asked, Failed, Update, data_of, digest_of, files_of, receive, send


def main(descriptor: int) -> None:
    """Answer the coordinator's requests until the connection closes.

    Args:
        descriptor: file descriptor of the socket to the coordinator.
    """
    with socket.socket(fileno=descriptor) as end:
        about = receive(end)
        assert isinstance(about, About)
        place = Place(Path(about.site["folder"]))
        place.path.mkdir(parents=True, exist_ok=True)
        _speak_to(place.log)
        with lock.folder_held(place.path / "site.lock", "or give the site another folder"):
            atomic.remove_unfinished(place.path)
            while True:
                try:
                    asked = receive(end)
                except EOFError:
                    return
                assert isinstance(asked, Asked)
                send(end, _answer(about, asked, place))


def _speak_to(log: Path) -> None:
    """Redirect this process's output to the site's log, because output may quote tasks."""
    descriptor = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
    os.dup2(descriptor, 1)
    os.dup2(descriptor, 2)
    os.close(descriptor)


def _answer(about: About, asked: Asked, place: Place) -> Update | Failed:
    try:
        place.join(about.federation["id"])
        site = Site(about, place)
        answer = site.learned(asked) if asked.files else site.beginning()
    except (ValueError, RunError, OSError):
        traceback.print_exc()
        return Failed(asked.round)
    _note_sent(place, answer)
    return answer


def _note_sent(place: Place, answer: Update) -> None:
    """Log each sent item."""
    about = json.dumps(answer.about, sort_keys=True).encode()
    atomic.drop_unfinished_line(place.sent)
    with place.sent.open("a", encoding="utf-8") as file:
        for name, data in [*files_of(answer).items(), ("about", about)]:
            row = {"round": answer.round, "file": name, "bytes": len(data), "digest": digest_of(data)}
            file.write(json.dumps(row) + "\n")


class Until(Observer):
    """Observer that stops training at a given step and logs progress."""

    def __init__(self, until: int) -> None:
        self.until, self.at = until, 0

    def began(self, done: int, steps: int) -> None:  # noqa: ARG002
        self.at = done

    def step(self, step: int, metrics: dict[str, float]) -> None:
        self.at = step
        self.note(f"step {step}: reward {metrics.get('reward', float('nan')):.4f}")

    def note(self, text: str) -> None:
        sys.stdout.write(f"{time.strftime('%Y-%m-%d %H:%M:%S')} {text}\n")
        sys.stdout.flush()

    def wants_stop(self) -> bool:
        return self.at >= self.until


class Site:
    """One site during a round."""

    def __init__(self, about: About, place: Place) -> None:
        self.about, self.place = about, place

    def recipe(self) -> RunSettings:
        """Return the site's recipe, with training steps for all rounds together and the initial adapters.

        Raises:
            ValueError: the recipe is invalid, or trains weights other than adapters.
        """
        site, federation = self.about.site, self.about.federation

        def read(changes: Mapping[str, Any]) -> RunSettings:
            return site_recipe(
                site["recipe"], changes, name=site["name"], seed=federation["seed"], steps=federation["steps"],
                folder=self.place.path,
            )  # fmt: skip

        run = read(site["changes"])
        if self.place.start.is_dir():
            start = {f"policies.{name}.adapter": str(self.place.start / name) for name in run.trained_policies}
            run = read({**site["changes"], **start})
        return run

    def beginning(self) -> Update:
        """Return the recipe's initial adapters."""
        from marft.models.pool import Models

        run = self.recipe()
        models = Models(run)
        with atomic.new_folder(self.place.path / "beginning") as draft:
            for policy in run.trained_policies:
                models.save_policy(policy, draft / policy)
        return _update(0, {}, files_with(*read_folder(self.place.path / "beginning")))

    def learned(self, asked: Asked) -> Update:
        """Train from the given adapters and return the update.

        Raises:
            ValueError: invalid adapters, or training ended before the last step of the round.
        """
        files = files_of(asked)
        opened(files)
        begun = self.place.begin(asked.round, asked.steps, files)
        if not asked.steps:
            return Update(asked.round, {}, *data_of({}))
        self._train(begun)
        newest = self.place.newest()
        if newest is None or newest.state.step != begun.until:
            at = f"at step {newest.state.step}" if newest else "without a checkpoint"
            raise ValueError(f"{self.place.run.path} is {at}, where round {asked.round} ends at step {begun.until}")
        return self._sent(asked, newest, begun)

    def _train(self, begun: Begun) -> None:
        from marft.trainer.loop import train

        run, folder = self.recipe(), self.place.run
        resume, _, overwrite = resumed_or_started(folder, None)
        until = Until(begun.until)
        newest = self.place.newest()
        until.at = newest.state.step if newest else 0
        if not until.wants_stop():
            train(run, folder, resume=resume, overwrite=overwrite, observer=until)

    def _sent(self, asked: Asked, newest: Record, begun: Begun) -> Update:
        run, federation = self.recipe(), self.about.federation
        trained, configs = read_folder(newest.path / "policies")
        given, _ = opened(files_of(asked))
        before = {f"{policy}/{name}": given[policy][name] for policy in given for name in given[policy]}
        after = {f"{policy}/{name}": trained[policy][name] for policy in trained for name in trained[policy]}
        if {name: tensor.shape for name, tensor in before.items()} != {n: t.shape for n, t in after.items()}:
            raise ValueError("the adapters that were given are not of this recipe's policies, layers or ranks")
        clip, noise = federation["clip"], federation["noise"]
        # fixed order, because sums of floats depend on the order
        moved = sorted(name for name in after if _learns(run, name))
        key = self.place.noise_key() if noise else b""
        was, now = ({name: tensors[name] for name in moved} for tensors in (before, after))
        told, norm = hidden(was, now, clip, noise, key, str(asked.round))
        leaving = {**before, **told}
        adapters = {
            policy: {name: leaving[f"{policy}/{name}"] for name in tensors} for policy, tensors in trained.items()
        }
        facts: dict[str, Any] = {"models": _bases(run, newest)}
        if not noise:  # with noise, the exact norm would leak information
            facts["norm"] = norm
        if federation["counts"]:
            rows = self.place.run.read_metrics()[begun.since : begun.until]
            facts["episodes"] = sum(row["episodes"] for row in rows)
            facts["tokens"] = sum(round(row["sampled_actions"] * row["action_length"]) for row in rows)
        return _update(asked.round, facts, files_with(adapters, configs))


def _learns(run: RunSettings, name: str) -> bool:
    """Return True for a trained adapter tensor, named like ``policy/layer.lora_A.weight``.

    Fixed tensors are sent as given, without noise.
    """
    policy = run.policies[name.partition("/")[0]]
    return policy.lora.trains == "both" or ".lora_A." not in name


def _update(round_: int, facts: dict[str, Any], files: dict[str, bytes]) -> Update:
    return Update(round_, facts, *data_of(files))


def _bases(run: RunSettings, record: Record) -> dict[str, str]:
    """Return the base model's digest per trained policy."""
    return {
        policy: record.models[f"models.{local_model(run.models, run.policies[policy].model)}"]
        for policy in run.trained_policies
    }
