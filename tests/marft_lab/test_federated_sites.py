"""Sites in processes of their own: what one learns from is nowhere at another, and a kill anywhere changes nothing."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest
import torch
from torch import Tensor

import marft_lab.federated.site as place_module
import marft_lab.federated.site as site_module
from marft.config.run import RunSettings
from marft.models.adapter_files import CONFIG_FILE
from marft.rollout.local_runner import LocalRolloutRunner
from marft.runs.checkpoints import CheckpointManager
from marft.runs.run_folder import RunFolder
from marft.runs.state import CheckpointRecord, checkpoint_name, read_record
from marft_lab.federated.adapter_io import (
    build_files,
    parse_files,
    recover_checkpoint,
    replace_adapters,
    write_adapters,
)
from marft_lab.federated.aggregation import Adapter
from marft_lab.federated.federation_folder import RoundRecord
from marft_lab.federated.messages import Assignment, TrainRequest, Update, pack_files, unpack_files
from marft_lab.federated.privacy import global_norm, privatize_update
from marft_lab.federated.site import RoundProgress, SiteFolder, SiteTrainer, StopAtStep
from tests.helpers import settings
from tests.marft.cli.test_cli import run
from tests.marft_lab.test_federated import CONFIGURATION, adapter, folder_of
from tests.nights import BY_NIGHT, NIGHT, some
from tests.runs import contents, finished

RECIPE = """
name = "own"
threads = 1
sinks = []

[models.base]
path = "tiny-tools"

[policies.actor]
model = "base"
lora = { rank = 2, alpha = 4 }

[tools.multiply]
name = "function"
call = "SITE_parts:multiply"

[[agents]]
role = "actor"
policy = "actor"
instructions = 'You are the calculator. Work out the product and put it in \\\\boxed{}.'
answers = true
tools = ["multiply"]
tool_use = { max_rounds = 1 }
sampling = { max_new_tokens = 24 }

[environment]
name = "table"
path = "tasks.csv"
grading = "SITE_parts:grade"

[algorithm]
name = "grpo"

[rollout]
tasks_per_step = 2
samples_per_task = 4
"""
PARTS = """
from pathlib import Path

DOCUMENT = Path(__file__).with_name("document.txt").read_text()


def multiply(a: int, b: int) -> str:
    \"\"\"Multiply two numbers.\"\"\"
    return "TOOL-WORD " + str(a * b)


def grade(row, text):
    return len(text) % 7 / 7 + 0 * len(DOCUMENT)
"""
KINDS = ("task", "tool", "document")


def words(site: str) -> dict[str, str]:
    """What stands in a site's tasks, in what its tool answers, and in its document."""
    return {kind: f"{site}{kind}canary{len(kind) * 7919}" for kind in KINDS}


def site_in(folder: Path, site: str) -> Path:
    """A site's own folder, with its recipe and all that is private."""
    folder.mkdir(parents=True)
    rows = [f'"{words(site)["task"]}: {n} times {n + 3}?",{n * (n + 3)}' for n in range(40)]
    (folder / "tasks.csv").write_text("\n".join(["question,answer", *rows]) + "\n")
    (folder / "document.txt").write_text(words(site)["document"])
    (folder / f"{site}_parts.py").write_text(PARTS.replace("TOOL-WORD", words(site)["tool"]))
    (folder / "recipe.toml").write_text(RECIPE.replace("SITE", site))
    return folder


@BY_NIGHT
@pytest.mark.slow
def test_what_a_site_learns_from_is_nowhere_else(tmp_path: Path) -> None:
    sites = {name: site_in(tmp_path / name, name) for name in ("north", "south")}
    tables = "\n".join(
        f'[sites.{name}]\nrecipe = "{folder}/recipe.toml"\nfolder = "{folder}/own"' for name, folder in sites.items()
    )
    (tmp_path / "both.toml").write_text(f'rounds = 3\nsteps = 1\noutput = "{tmp_path}/runs"\n{tables}\n')
    command = [sys.executable, "-m", "marft", "federate", str(tmp_path / "both.toml"), "--json"]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(path for path in sys.path if path)}
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=environment) as process:
        assert process.stdout is not None
        rounds = (line for line in process.stdout if json.loads(line)["event"] == "round")
        assert list(zip("12", rounds, strict=False))[-1][0] == "2"  # south has been given what north has learned
        with stopped([process.pid]):
            of = {"coordinator": process.pid, **{site_of(pid): pid for pid in below(process.pid) if site_of(pid)}}
            with stopped([of[name] for name in sites]):
                seen = {who: {name: found_in(pid, words(name)) for name in sites} for who, pid in of.items()}
        said = process.stdout.read()
        assert process.wait() == 0, said
    assert seen["north"]["north"] == seen["south"]["south"] == set(KINDS)  # it would be found
    assert not seen["north"]["south"] | seen["south"]["north"]
    assert not seen["coordinator"]["north"] | seen["coordinator"]["south"]
    for name, other in (("north", tmp_path / "south"), ("south", tmp_path / "north")):
        for file in [*other.rglob("*"), *(tmp_path / "runs").rglob("*")]:
            held = file.read_bytes() if file.is_file() else b""
            assert not any(word.encode() in held for word in words(name).values()), file
        assert words(name)["task"] not in said
    rows = [json.loads(line) for line in (tmp_path / "runs" / "both" / "ledger.jsonl").read_text().splitlines()]
    sent = {row["file"] for row in rows if row["from"] == "north"}
    assert sent == {"actor/adapter_model.safetensors", "actor/adapter_config.json", "about"}
    its_own = [json.loads(line) for line in (tmp_path / "north" / "own" / "sent.jsonl").read_text().splitlines()]
    assert [row["digest"] for row in its_own] == [row["digest"] for row in rows if row["from"] == "north"]


@pytest.mark.slow
@pytest.mark.skipif(not NIGHT, reason="six federations: make nightly")
def test_a_federation_that_is_killed_ends_as_one_that_was_not(tmp_path: Path) -> None:
    ends = []
    for kills in ((), (1, 4, 9, 14, 19)):  # lines of the ledger at which all of it is killed
        place = tmp_path / str(len(kills))
        tables = "\n".join(
            f'[sites.{name}]\nrecipe = "{site_in(place / name, name)}/recipe.toml"' for name in ("north", "south")
        )
        (place / "both.toml").write_text(f'rounds = 2\nsteps = 2\noutput = "{place}"\n{tables}\n')
        command = [sys.executable, "-m", "marft", "federate", str(place / "both.toml"), "--quiet"]
        environment = {**os.environ, "PYTHONPATH": os.pathsep.join(path for path in sys.path if path)}
        ledger = place / "both" / "ledger.jsonl"
        for lines in (*kills, 10**6):
            again = ["--resume"] if (place / "both" / "federation.json").exists() else []
            with subprocess.Popen([*command, *again], env=environment) as process:
                while process.poll() is None and (not ledger.exists() or len(ledger.read_bytes().splitlines()) < lines):
                    time.sleep(0.05)
                process.kill()
        assert process.returncode == 0
        ends.append(contents(place / "both" / "rounds" / "round_000002"))
    assert ends[0] == ends[1]


@pytest.mark.parametrize(
    ("norms", "learned"),
    [({"north": 0.0, "south": 0.0}, False), ({"north": 0.0, "south": 1e-9}, True), ({}, True)],
    ids=["nothing moved", "one site moved", "privacy hides the norms"],
)
def test_the_command_says_whether_any_site_changed(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch,
    norms: Mapping[str, float], learned: bool,
) -> None:  # fmt: skip
    record = RoundRecord(1, ["north", "south"], {}, {}, {}, norms, (0.0, 0.0), None, {})
    monkeypatch.setattr("marft_lab.federated.coordinator.federate", lambda *_, **__: [record])
    path = tmp_path / "sites.toml"
    path.write_text('[sites.north]\nrecipe = "demo"\n[sites.south]\nrecipe = "demo"\n', encoding="utf-8")
    assert ("no site's policies changed" in run(capsys, "federate", str(path))) is not learned
    end = json.loads(run(capsys, "federate", str(path), "--json"))
    assert (end["event"], end["learned"]) == ("done", learned)


def below(process: int) -> Iterator[int]:
    """The processes that a process has started, and those that they have."""
    for thread in Path(f"/proc/{process}/task").iterdir():
        for child in map(int, (thread / "children").read_text().split()):
            yield child
            yield from below(child)


def site_of(process: int) -> str:
    """Whose log a process speaks to."""
    try:
        log = Path(f"/proc/{process}/fd/1").readlink()
    except OSError:  # it has let go of it, or has gone
        return ""
    return log.parent.parent.name if log.name == "site.log" else ""


@contextmanager
def stopped(processes: list[int]) -> Iterator[None]:
    for process in processes:
        os.kill(process, signal.SIGSTOP)
    try:
        yield
    finally:
        for process in processes:
            os.kill(process, signal.SIGCONT)


def found_in(process: int, wanted: dict[str, str]) -> set[str]:
    """Which words stand in what a process has in its memory, but for files that it only reads."""
    found = set()
    with Path(f"/proc/{process}/mem").open("rb", buffering=0) as memory:
        for line in Path(f"/proc/{process}/maps").read_text().splitlines():
            where, rights, *_ = line.split()
            if rights.startswith("rw"):
                start, end = (int(place, 16) for place in where.split("-"))
                memory.seek(start)
                with suppress(OSError):  # a device's, which nobody can read
                    held = memory.read(end - start)
                    found |= {kind for kind, word in wanted.items() if word.encode() in held}
    return found


def site(folder: Path, recipe: Path, name: str = "north", **told: float) -> SiteTrainer:
    federation = {"seed": 0, "steps": 4, "clip": 0.0, "noise": 0.0, "counts": True, **told}
    own = {"name": name, "folder": str(folder), "recipe": str(recipe), "changes": {}}
    return SiteTrainer(Assignment(own, federation), SiteFolder(folder))


def asked(round_: int, files: dict[str, bytes]) -> TrainRequest:
    return TrainRequest(round_, 2, *pack_files(files))


@pytest.mark.slow
def test_a_site_that_is_killed_anywhere_sends_the_same(tmp_path: Path) -> None:
    recipe = site_in(tmp_path / "one", "killed") / "recipe.toml"
    whole = [unpack_files(site(tmp_path / "whole", recipe).initial_update())]
    for round_ in (1, 2):
        answer = site(tmp_path / "whole", recipe).train_round(asked(round_, whole[-1]))
        assert answer.report["episodes"] == 16
        whole.append(unpack_files(answer))
    assert whole[0] != whole[1] != whole[2]  # it learns
    folder = tmp_path / "killed"
    for round_ in (0, 1, 2):
        for moment in (*some(range(1, 40, 6), of=4), 1000):  # changes to folders before the one that is not made
            child = os.fork()
            if child == 0:
                status = 1
                try:
                    dying_after(moment)
                    one = site(folder, recipe)
                    _ = one.train_round(asked(round_, whole[round_ - 1])) if round_ else one.initial_update()
                    status = 0
                finally:
                    os._exit(status)
            assert os.waitpid(child, 0)[1] in (0, signal.SIGKILL)
    assert unpack_files(site(folder, recipe).train_round(asked(2, whole[1]))) == whole[2]


def dying_after(left: int) -> None:
    """This process is killed before it changes a folder once more than so often."""

    def look(event: str, arguments: object) -> None:
        nonlocal left
        if event in {"os.remove", "os.rename", "os.rmdir"}:
            left -= 1
            if left < 0:
                os.kill(os.getpid(), signal.SIGKILL)

    sys.addaudithook(look)


@pytest.mark.slow
def test_a_checkpoint_receives_adapters_and_stays_one(tmp_path: Path) -> None:
    LocalRolloutRunner(settings()).close()
    run, folder = finished(tmp_path)
    path = folder.checkpoints / checkpoint_name(2)
    other = folder.checkpoints / checkpoint_name(1) / "policies"
    record = read_record(path)
    replace_adapters(record, {policy.name: policy for policy in other.iterdir()})
    received = read_record(path)
    for policy in other.iterdir():
        name = "adapter_model.safetensors"
        assert (path / "policies" / policy.name / name).read_bytes() == (policy / name).read_bytes()
    assert (received.state.step, received.log, received.models) == (record.state.step, record.log, record.models)
    before = folder.checkpoints / ".unfinished-0123456789abcdef-before"
    path.rename(before)  # as a crash leaves it, between two names
    recover_checkpoint(path)
    assert CheckpointManager(folder, run.checkpoints).newest()[0] == received


def test_a_site_says_what_it_misses(tmp_path: Path) -> None:
    place = SiteFolder(tmp_path)
    place.round_file.write_text(json.dumps({"round": 2, "since": 4, "until": 6}))
    assert place.read_progress() == RoundProgress(2, 4, 6)
    with pytest.raises(ValueError, match="checkpoint of step 4, from which round 2 began, is gone"):
        place.start_round(2, 2, {})
    place.round_file.write_text("{")
    with pytest.raises(ValueError, match="damaged"):
        place.read_progress()


def test_a_round_that_is_added_is_learned_in_though_the_end_had_its_number(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What came of the last round is given in a round of no steps."""
    checkpoint = SimpleNamespace(state=SimpleNamespace(step=10))
    monkeypatch.setattr(SiteFolder, "newest_checkpoint", lambda _: checkpoint)
    monkeypatch.setattr(place_module, "replace_adapters", lambda *_: None)
    given, place = {f"actor/{CONFIG_FILE}": b"{}"}, SiteFolder(tmp_path)
    assert place.start_round(3, 0, given) == place.start_round(3, 0, given) == RoundProgress(3, 10, 10)
    assert place.start_round(3, 5, given) == RoundProgress(3, 10, 15)
    checkpoint.state.step = 12
    assert place.start_round(3, 5, given) == RoundProgress(3, 10, 15)  # stopped in the middle of it


def test_adapters_alone_leave_a_site(tmp_path: Path) -> None:
    recipe = site_in(tmp_path / "full", "full") / "recipe.toml"
    recipe.write_text(recipe.read_text().replace("lora = { rank = 2, alpha = 4 }", 'train = "full"'))
    with pytest.raises(ValueError, match="adapters alone leave a site"):
        site(tmp_path / "own", recipe).load_recipe()


def test_each_site_draws_with_a_seed_of_its_own(tmp_path: Path) -> None:
    recipe = site_in(tmp_path / "one", tmp_path.name) / "recipe.toml"
    seeds = [
        site(tmp_path, recipe, name, seed=seed).load_recipe().seed for name in ("north", "south") for seed in (0, 1)
    ]
    assert len(set(seeds)) == 4


GIVEN = build_files({"actor": adapter(0)}, {f"actor/{CONFIG_FILE}": json.dumps(CONFIGURATION).encode()})


def test_a_site_begins_with_the_adapters_of_its_recipe_and_its_run_with_those_that_it_was_given(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Models:
        def __init__(self, run: RunSettings) -> None:
            assert run.policies["actor"].adapter == ""

        def save_policy(self, policy: str, folder: Path) -> None:
            (folder_of(folder.with_name("all"), adapter(3)) / policy).rename(folder)
            folder.with_name("all").rmdir()

    monkeypatch.setattr("marft.models.policy_registry.PolicyRegistry", Models)
    one = site(tmp_path / "own", site_in(tmp_path / "one", tmp_path.name) / "recipe.toml")
    update = one.initial_update()
    adapters, configs = parse_files(unpack_files(update))
    assert (update.round, update.report, list(adapters), list(configs)) == (0, {}, ["actor"], [f"actor/{CONFIG_FILE}"])
    assert all(torch.equal(adapters["actor"][name], tensor) for name, tensor in adapter(3).items())
    assert [path.name for path in one.folder.path.iterdir()] == ["beginning"]
    write_adapters(one.folder.initial_adapters, unpack_files(update))
    assert one.load_recipe().policies["actor"].adapter == str(tmp_path / "own" / "start" / "actor")


class TestARound:
    """Of a site whose training is a count of steps."""

    at = 0  # the step of its newest checkpoint
    does = 9  # steps that training does, at most
    trained: list[tuple[Any, ...]] = []

    @pytest.fixture
    def one(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> SiteTrainer:
        self.trained = []

        def newest(_: SiteFolder) -> Any:
            return SimpleNamespace(state=SimpleNamespace(step=self.at)) if self.at else None

        def train(
            run: RunSettings, folder: RunFolder, *, resume: bool, overwrite: bool, callbacks: list[StopAtStep]
        ) -> None:
            (callback,) = callbacks
            self.trained.append((run.training.steps, folder.path, resume, overwrite, callback.current_step))
            for _ in range(self.does):
                if not callback.wants_stop():
                    self.at += 1
                    callback.on_step_end(self.at, {})

        def sent(_: SiteTrainer, asked: TrainRequest, newest: CheckpointRecord, begun: RoundProgress) -> Update:
            return Update(asked.round, {"step": newest.state.step, "begun": begun}, *pack_files(unpack_files(asked)))

        monkeypatch.setattr(SiteFolder, "newest_checkpoint", newest)
        monkeypatch.setattr(place_module, "replace_adapters", lambda *_: None)
        monkeypatch.setattr(site_module, "resolve_start", lambda *_: (self.at > 0, None, self.at == 0))
        monkeypatch.setattr("marft.trainer.train.train", train)
        monkeypatch.setattr(SiteTrainer, "_build_update", sent)
        return site(tmp_path / "own", site_in(tmp_path / "one", tmp_path.name) / "recipe.toml")

    def test_goes_on_where_the_one_before_ended_and_is_learned_in_once(self, one: SiteTrainer) -> None:
        first, second, again = (one.train_round(asked(round_, GIVEN)) for round_ in (1, 2, 2))
        assert first.report == {"step": 2, "begun": RoundProgress(1, 0, 2)}
        assert second.report == again.report == {"step": 4, "begun": RoundProgress(2, 2, 4)}
        assert (first.round, unpack_files(first)) == (1, GIVEN)
        assert self.trained == [
            (4, one.folder.run.path, False, True, 0),
            (4, one.folder.run.path, True, False, 2),
        ]

    def test_of_no_steps_puts_in_place_what_is_given_and_sends_nothing(self, one: SiteTrainer) -> None:
        update = one.train_round(TrainRequest(3, 0, *pack_files(GIVEN)))
        assert (update.round, update.report, unpack_files(update), self.trained) == (3, {}, {}, [])
        assert contents(one.folder.given_adapters) == GIVEN

    @pytest.mark.parametrize(("does", "said"), [(0, "is without a checkpoint"), (1, "is at step 1")])
    def test_that_ends_too_early_is_none(self, one: SiteTrainer, does: int, said: str) -> None:
        self.does = does
        with pytest.raises(ValueError, match=f"run {said}, where round 1 ends at step 2"):
            one.train_round(asked(1, GIVEN))

    def test_begins_with_adapters_alone(self, one: SiteTrainer) -> None:
        with pytest.raises(ValueError, match="a file that is no adapter's"):
            one.train_round(asked(1, {**GIVEN, "actor/words": b"1"}))
        assert not one.folder.given_adapters.exists()


class TestWhatLeaves:
    """Of a site that has been given one adapter and has come to another."""

    @pytest.fixture
    def sent(self, tmp_path: Path) -> Callable[..., tuple[Mapping[str, Any], Mapping[str, Tensor]]]:
        def send(
            given: Adapter, trained: Adapter, trains: str = "both", **told: float
        ) -> tuple[Mapping[str, Any], Mapping[str, Tensor]]:
            recipe = site_in(tmp_path / "one", tmp_path.name) / "recipe.toml"
            recipe.write_text(recipe.read_text().replace("alpha = 4", f'alpha = 4, trained_matrices = "{trains}"'))
            files = {
                name: build_files({"actor": each}, {f"actor/{CONFIG_FILE}": json.dumps(CONFIGURATION).encode()})
                for name, each in (("given", given), ("trained", trained))
            }
            write_adapters(tmp_path / "checkpoint" / "policies", files["trained"])
            one, newest = site(tmp_path / "own", recipe, **told), SimpleNamespace()
            newest.path, newest.models = tmp_path / "checkpoint", {"models.base": "0123"}
            one.folder.run.path.mkdir(parents=True)
            rows = [{"step": n, "episodes": 8, "sampled_actions": 10, "action_length": 2.5} for n in (1, 2, 3)]
            one.folder.run.metrics_path.write_text("".join(json.dumps(row) + "\n" for row in rows))
            update = one._build_update(
                asked(1, files["given"]), cast("CheckpointRecord", newest), RoundProgress(1, 1, 3)
            )
            return update.report, parse_files(unpack_files(update))[0]["actor"]

        return send

    def test_its_counts_are_of_its_round(self, sent: Any) -> None:
        about, left = sent(adapter(0), adapter(1))
        assert (about["models"], about["episodes"], about["tokens"]) == ({"actor": "0123"}, 16, 50)
        assert all(torch.equal(left[name], tensor) for name, tensor in adapter(1).items())
        assert about["norm"] == pytest.approx(
            global_norm({n: adapter(1)[n].double() - t for n, t in adapter(0).items()})
        )

    def test_its_length_stays_where_noise_hides_it(self, sent: Any) -> None:
        about, _ = sent(adapter(0), adapter(1), clip=1.0, noise=1.0, counts=False)
        assert about.keys() == {"models"}

    def test_its_noise_is_drawn_with_a_key_of_its_own(self, sent: Any, tmp_path: Path) -> None:
        given, trained = ({f"actor/{name}": each for name, each in adapter(seed).items()} for seed in (0, 1))
        _, left = sent(adapter(0), adapter(1), clip=2.0, noise=0.5)
        wanted, _ = privatize_update(given, trained, 2.0, 0.5, (tmp_path / "own" / "noise.key").read_bytes(), "1")
        assert all(torch.equal(left[name], wanted[f"actor/{name}"]) for name in left)

    def test_without_noise_there_is_no_key(self, sent: Any, tmp_path: Path) -> None:
        sent(adapter(0), adapter(1), clip=2.0)
        assert not (tmp_path / "own" / "noise.key").exists()

    @pytest.mark.parametrize("order", [1, -1])
    def test_its_norm_is_the_same_in_whatever_order_its_numbers_are_read(
        self, sent: Any, monkeypatch: pytest.MonkeyPatch, order: int
    ) -> None:
        """The squares of twenty small numbers are lost one by one beside a large one, and not all together."""
        layers = [f"base_model.model.layers.{number:02}.lora_B.weight" for number in range(21)]
        given = {name: torch.zeros(1, 1) for name in layers}
        trained = {name: torch.full((1, 1), 0.8e-8) for name in layers} | {layers[0]: torch.ones(1, 1)}
        configs = {f"actor/{CONFIG_FILE}": json.dumps(CONFIGURATION).encode()}
        read = {name: trained[name] for name in layers[::order]}
        monkeypatch.setattr(site_module, "read_adapters", lambda _: ({"actor": read}, configs))
        assert sent(given, trained)[0]["norm"] == 1.0

    def test_what_does_not_learn_leaves_as_it_was_given(self, sent: Any) -> None:
        _, left = sent(adapter(0), adapter(1), trains="B", clip=1.0, noise=1.0)
        assert [torch.equal(left[name], tensor) for name, tensor in adapter(0).items()] == [True, False]

    def test_adapters_of_another_rank_are_not_its_own(self, sent: Any) -> None:
        with pytest.raises(ValueError, match="not of this recipe's policies, layers or ranks"):
            sent(adapter(0), adapter(1, rank=3))


def test_the_key_of_its_noise_is_drawn_once(tmp_path: Path) -> None:
    place = SiteFolder(tmp_path)
    assert place.read_noise_key() == place.read_noise_key() != SiteFolder(tmp_path / "other").read_noise_key()
    assert (tmp_path / "noise.key").stat().st_mode & 0o77 == 0


def test_the_key_of_its_noise_is_nobody_elses_to_read_at_any_time(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    rights, real = [], Path.replace

    def replace(path: Path, target: Path) -> Path:
        rights.append(path.stat().st_mode & 0o777)
        return real(path, target)

    monkeypatch.setattr(Path, "replace", replace)
    SiteFolder(tmp_path).read_noise_key()
    assert rights == [0o600]


def test_a_folder_is_of_one_federation(tmp_path: Path) -> None:
    """Its rounds count for the ε of that one."""
    place = SiteFolder(tmp_path)
    place.join_federation("0123")
    place.join_federation("0123")
    with pytest.raises(ValueError, match=r"is of another federation, .* give the site another folder"):
        place.join_federation("4567")


def test_updates_are_messages_of_files() -> None:
    files = {"a": b"1", "b": b""}
    assert unpack_files(Update(1, {}, *pack_files(files))) == files
