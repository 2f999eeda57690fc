"""Process of a site: training on the site's own data, and exchange of adapters with the coordinator.

The process only reads its own folder and the files named in its recipe.
"""

from __future__ import annotations

import json
import os
import secrets
import socket
import sys
import time
import traceback
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from marft.common import atomic
from marft.common.callbacks import Callback
from marft.common.errors import RunError, UserError
from marft.config.models import local_model
from marft.config.run import CheckpointSettings, RunSettings
from marft.runs import lock
from marft.runs.checkpoints import CheckpointManager
from marft.runs.run_folder import RunFolder, resolve_start
from marft.runs.state import CheckpointRecord, checkpoint_name
from marft_lab.federated.adapter_io import (
    build_files,
    parse_files,
    read_adapters,
    recover_checkpoint,
    replace_adapters,
    write_adapters,
)
from marft_lab.federated.messages import (
    Assignment,
    TrainFailure,
    TrainRequest,
    Update,
    pack_files,
    receive,
    send,
    sha256_digest,
    unpack_files,
)
from marft_lab.federated.privacy import privatize_update
from marft_lab.federated.settings import RUN_NAME, load_site_recipe

KEY_BYTES = 32


@dataclass(frozen=True, slots=True)
class RoundProgress:
    """Round in progress at a site; the given adapters replace the weights of checkpoint ``since``."""

    round: int
    since: int
    until: int  # training step at which the site sends its update


class SiteFolder:
    """Folder of a site.

    ::

        run/           run of the site, as `marft train` writes it
        start/         initial adapters of the run
        given/         last given adapters
        round.json     round in progress
        sent.jsonl     log of sent files
        noise.key      secret key of the noise
        federation.id  identifier of the federation
        site.log       output of the process
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self.run = RunFolder(path / RUN_NAME)
        self.initial_adapters = path / "start"
        self.given_adapters = path / "given"
        self.round_file = path / "round.json"
        self.sent_log = path / "sent.jsonl"
        self.process_log = path / "site.log"

    def join_federation(self, federation_id: str) -> None:
        """Assign the site to a federation, permanently.

        Raises:
            UserError: the folder belongs to a different federation.
        """
        id_file = self.path / "federation.id"
        if not id_file.is_file():
            atomic.write_file(id_file, federation_id + "\n")
        elif id_file.read_text(encoding="ascii", errors="replace").strip() != federation_id:
            raise UserError(
                f"{self.path} is of another federation, whose rounds it counts; give the site another folder (or move "
                "this one away)"
            )

    def read_progress(self) -> RoundProgress | None:
        """Return the round in progress; None before the first round.

        Raises:
            UserError: damaged round file.
        """
        if not self.round_file.is_file():
            return None
        try:
            return RoundProgress(**atomic.read_json(self.round_file))
        except (ValueError, TypeError) as error:
            raise UserError(f"{self.round_file} is damaged: {error}; take the site's folder from a backup") from error

    def newest_checkpoint(self) -> CheckpointRecord | None:
        """Return the newest checkpoint in the site's run; None before the first checkpoint."""
        if not self.run.is_run():
            return None
        if (progress := self.read_progress()) is not None:
            recover_checkpoint(self.run.checkpoints / checkpoint_name(progress.since))
        return CheckpointManager(self.run, CheckpointSettings()).newest()[0]

    def start_round(self, round_: int, steps: int, files: Mapping[str, bytes]) -> RoundProgress:
        """Begin or resume a round, and put the given adapters in place.

        The method is safe to repeat after any interrupt.

        Args:
            round_: number of the round.
            steps: training steps of the round.
            files: given adapter files, by name.

        Raises:
            UserError: the checkpoint at the start of the round is missing.
        """
        newest, progress = self.newest_checkpoint(), self.read_progress()
        step = newest.state.step if newest else 0
        # the last adapters are given in a round without steps; its number may be reused by a later round with steps
        if progress is None or progress.round != round_ or (steps and progress.until == progress.since):
            write_adapters(self.given_adapters, files)
            progress = RoundProgress(round_, step, step + steps)
            atomic.write_file(self.round_file, json.dumps(asdict(progress)) + "\n")
        if step < progress.since:
            raise UserError(
                f"{self.run.checkpoints}: the checkpoint of step {progress.since}, from which round {round_} began, is "
                "gone or damaged; put it back"
            )
        if newest is None:
            write_adapters(self.initial_adapters, {name: (self.given_adapters / name).read_bytes() for name in files})
        elif step == progress.since:
            replace_adapters(newest, {policy.name: policy for policy in sorted(self.given_adapters.iterdir())})
        return progress

    def read_noise_key(self) -> bytes:
        """Return the noise generator's key: 256 bits from the operating system, created on first use.

        With a fixed key, a repeated round sends the same update.

        Raises:
            UserError: damaged key file.
        """
        path = self.path / "noise.key"
        if not path.is_file():
            atomic.write_file(path, secrets.token_bytes(KEY_BYTES), mode=0o600)
        data = path.read_bytes()
        if len(data) != KEY_BYTES:
            raise UserError(f"{path} is damaged; put it back from a copy, or remove it and another one is drawn")
        return data


def main(descriptor: int) -> None:
    """Answer the coordinator's requests until the connection closes.

    Args:
        descriptor: file descriptor of the socket to the coordinator.
    """
    with socket.socket(fileno=descriptor) as connection:
        assignment = receive(connection)
        assert isinstance(assignment, Assignment)
        folder = SiteFolder(Path(assignment.site["folder"]))
        folder.path.mkdir(parents=True, exist_ok=True)
        _redirect_output(folder.process_log)
        with lock.lock_folder(folder.path / "site.lock", "or give the site another folder"):
            atomic.remove_temp_entries(folder.path)
            while True:
                try:
                    request = receive(connection)
                except EOFError:
                    return
                assert isinstance(request, TrainRequest)
                send(connection, _handle_request(assignment, request, folder))


def _redirect_output(log: Path) -> None:
    """Redirect this process's output to the site's log, because output may quote tasks."""
    descriptor = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
    os.dup2(descriptor, 1)
    os.dup2(descriptor, 2)
    os.close(descriptor)


def _handle_request(assignment: Assignment, request: TrainRequest, folder: SiteFolder) -> Update | TrainFailure:
    try:
        folder.join_federation(assignment.federation["id"])
        site = SiteTrainer(assignment, folder)
        answer = site.train_round(request) if request.files else site.initial_update()
    except (ValueError, RunError, OSError):
        traceback.print_exc()
        return TrainFailure(request.round)
    _log_sent(folder, answer)
    return answer


def _log_sent(folder: SiteFolder, answer: Update) -> None:
    """Log each sent item."""
    report = json.dumps(answer.report, sort_keys=True).encode()
    atomic.truncate_partial_line(folder.sent_log)
    with folder.sent_log.open("a", encoding="utf-8") as file:
        for name, data in [*unpack_files(answer).items(), ("about", report)]:
            row = {"round": answer.round, "file": name, "bytes": len(data), "digest": sha256_digest(data)}
            file.write(json.dumps(row) + "\n")


class StopAtStep(Callback):
    """Observer that stops training at a given step and logs progress."""

    def __init__(self, stop_step: int) -> None:
        self.stop_step, self.current_step = stop_step, 0

    def on_train_start(self, completed_steps: int, steps: int) -> None:  # noqa: ARG002
        self.current_step = completed_steps

    def on_step_end(self, step: int, metrics: dict[str, float]) -> None:
        self.current_step = step
        self.on_note(f"step {step}: reward {metrics.get('reward', float('nan')):.4f}")

    def on_note(self, text: str) -> None:
        sys.stdout.write(f"{time.strftime('%Y-%m-%d %H:%M:%S')} {text}\n")
        sys.stdout.flush()

    def wants_stop(self) -> bool:
        return self.current_step >= self.stop_step


class SiteTrainer:
    """One site during a round."""

    def __init__(self, assignment: Assignment, folder: SiteFolder) -> None:
        self.assignment, self.folder = assignment, folder

    def load_recipe(self) -> RunSettings:
        """Return the site's recipe, with training steps for all rounds together and the initial adapters.

        Raises:
            UserError: the recipe is invalid, or trains weights other than adapters.
        """
        site, federation = self.assignment.site, self.assignment.federation

        def load(changes: Mapping[str, Any]) -> RunSettings:
            return load_site_recipe(
                site["recipe"],
                changes,
                name=site["name"],
                seed=federation["seed"],
                steps=federation["steps"],
                folder=self.folder.path,
            )

        run = load(site["changes"])
        if self.folder.initial_adapters.is_dir():
            start = {
                f"policies.{name}.adapter": str(self.folder.initial_adapters / name) for name in run.trained_policies
            }
            run = load({**site["changes"], **start})
        return run

    def initial_update(self) -> Update:
        """Return the recipe's initial adapters."""
        from marft.models.policy_registry import PolicyRegistry

        run = self.load_recipe()
        models = PolicyRegistry(run)
        with atomic.new_folder(self.folder.path / "beginning") as draft:
            for policy in run.trained_policies:
                models.save_policy(policy, draft / policy)
        return Update(0, {}, *pack_files(build_files(*read_adapters(self.folder.path / "beginning"))))

    def train_round(self, request: TrainRequest) -> Update:
        """Train from the given adapters and return the update.

        Raises:
            UserError: invalid adapters, or training ended before the last step of the round.
        """
        files = unpack_files(request)
        parse_files(files)
        progress = self.folder.start_round(request.round, request.steps, files)
        if not request.steps:
            return Update(request.round, {}, *pack_files({}))
        self._train(progress)
        newest = self.folder.newest_checkpoint()
        if newest is None or newest.state.step != progress.until:
            position = f"at step {newest.state.step}" if newest else "without a checkpoint"
            raise UserError(
                f"{self.folder.run.path} is {position}, where round {request.round} ends at step {progress.until}"
            )
        return self._build_update(request, newest, progress)

    def _train(self, progress: RoundProgress) -> None:
        from marft.trainer.train import train

        run, folder = self.load_recipe(), self.folder.run
        resume, _, overwrite = resolve_start(folder, None)
        callback = StopAtStep(progress.until)
        newest = self.folder.newest_checkpoint()
        callback.current_step = newest.state.step if newest else 0
        if not callback.wants_stop():
            train(run, folder, resume=resume, overwrite=overwrite, callbacks=[callback])

    def _build_update(self, request: TrainRequest, newest: CheckpointRecord, progress: RoundProgress) -> Update:
        run, federation = self.load_recipe(), self.assignment.federation
        trained, configs = read_adapters(newest.path / "policies")
        given, _ = parse_files(unpack_files(request))
        before = {f"{policy}/{name}": given[policy][name] for policy in given for name in given[policy]}
        after = {f"{policy}/{name}": trained[policy][name] for policy in trained for name in trained[policy]}
        if {name: tensor.shape for name, tensor in before.items()} != {n: t.shape for n, t in after.items()}:
            raise UserError("the adapters that were given are not of this recipe's policies, layers or ranks")
        clip, noise = federation["clip"], federation["noise"]
        # fixed order, because sums of floats depend on the order
        trained_names = sorted(name for name in after if _is_trained(run, name))
        key = self.folder.read_noise_key() if noise else b""
        trained_before, trained_after = ({name: tensors[name] for name in trained_names} for tensors in (before, after))
        private, norm = privatize_update(trained_before, trained_after, clip, noise, key, str(request.round))
        sent_tensors = {**before, **private}
        adapters = {
            policy: {name: sent_tensors[f"{policy}/{name}"] for name in tensors} for policy, tensors in trained.items()
        }
        report: dict[str, Any] = {"models": _base_digests(run, newest)}
        if not noise:  # with noise, the exact norm would leak information
            report["norm"] = norm
        if federation["counts"]:
            rows = self.folder.run.read_metrics()[progress.since : progress.until]
            report["episodes"] = sum(row["episodes"] for row in rows)
            report["tokens"] = sum(round(row["sampled_actions"] * row["action_length"]) for row in rows)
        return Update(request.round, report, *pack_files(build_files(adapters, configs)))


def _is_trained(run: RunSettings, name: str) -> bool:
    """Return True for a trained adapter tensor, named like ``policy/layer.lora_A.weight``.

    Fixed tensors are sent as given, without noise.
    """
    policy = run.policies[name.partition("/")[0]]
    return policy.lora.trained_matrices == "both" or ".lora_A." not in name


def _base_digests(run: RunSettings, record: CheckpointRecord) -> dict[str, str]:
    """Return the base model's digest per trained policy."""
    return {
        policy: record.models[f"models.{local_model(run.models, run.policies[policy].model)}"]
        for policy in run.trained_policies
    }
