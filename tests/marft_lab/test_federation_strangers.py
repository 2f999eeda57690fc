"""What a site, or a damaged file, can do to a federation: no more than to be left out, or named."""

from __future__ import annotations

import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch

from marft.common.atomic import digest_of_json
from marft.common.processes.messages import LENGTHS, decode_frame, encode_frame
from marft.models.adapter_files import CONFIG_FILE
from marft_lab.federated.adapter_io import MAX_SENT, build_files, find_differences, replace_adapters
from marft_lab.federated.aggregation import average_adapters
from marft_lab.federated.coordinator import federate
from marft_lab.federated.federation_folder import FederationFolder
from marft_lab.federated.messages import Update, pack_files
from marft_lab.federated.settings import parse_federation
from marft_lab.federated.site_link import TransferLog, _validate_update
from tests.marft.cli.test_cli import run
from tests.marft_lab.test_federated import adapter
from tests.marft_lab.test_federating import CONFIGURATIONS, Learner, learners, settings, stopping_after

__all__ = ["learners"]  # a fixture


@pytest.mark.parametrize("count", ["many", -5, 0, None, True, float("inf"), 10**400, 1.7e308])
def test_who_does_not_say_how_much_it_has_played_is_left_out(
    tmp_path: Path, learners: type[Learner], count: Any
) -> None:
    learners.other = {"episodes": count}
    rounds = federate(settings(min_sites=2, combine={"name": "average", "weight": "episodes"}), tmp_path)
    assert all("where its episodes are asked for" in one.left_out["south"] for one in rounds[1:])
    assert rounds[-1].mixing["north"] == [5 / 9, 0.0, 4 / 9]


@pytest.mark.parametrize("count", [1, 1e-3, 1e15])
def test_who_has_played_little_or_much_is_in(tmp_path: Path, learners: type[Learner], count: float) -> None:
    learners.other = {"episodes": count}
    rounds = federate(settings(min_sites=2, combine={"name": "average", "weight": "episodes"}), tmp_path)
    assert not any(one.left_out for one in rounds)


@pytest.mark.parametrize("count", [1e-3, 1, 1e15])
def test_who_says_how_much_it_has_played_weighs_by_it(tmp_path: Path, learners: type[Learner], count: float) -> None:
    learners.other = {"episodes": count}
    rounds = federate(settings(rounds=1, combine={"name": "average", "weight": "episodes"}), tmp_path)
    assert rounds[-1].mixing["north"] == [share / (5 + count + 4) for share in (5, count, 4)]


@pytest.mark.parametrize("number", [10**400, "1", True, [], float("nan")])
def test_what_is_no_number_is_none(number: Any) -> None:
    with pytest.raises(ValueError, match="a norm of"):
        _validate_update(Update(1, {"norm": number}, *pack_files({})))


def test_numbers_beyond_any_models_leave_their_site_out(tmp_path: Path, learners: type[Learner]) -> None:
    learners.other = {"sends": {name: tensor * 1e32 for name, tensor in adapter(0).items()}}
    rounds = federate(settings(min_sites=2), tmp_path)
    assert "holds what is no number, or one that is none of a model's" in rounds[-1].left_out["south"]


def test_a_that_cancel_out_make_no_b_that_is_none() -> None:
    """The average A is as good as nothing, and its B is not divided by that."""
    one, other = adapter(0), adapter(1)
    for name in one:
        other[name] = -one[name] * (1 - 1e-6) if "lora_A" in name else other[name] / other[name].abs().max() * MAX_SENT
    found = average_adapters([one, other], [0.5, 0.5], "products")
    assert max(float(tensor.abs().max()) for tensor in found.values()) < 1e4 * MAX_SENT


@pytest.mark.parametrize("size", [1e20, 1e30])
def test_what_is_made_of_the_largest_numbers_is_given_all_the_same(size: float) -> None:
    one, other = adapter(0), adapter(1)
    found = average_adapters([one, {name: tensor * size for name, tensor in other.items() if "lora_A" in name} | {
        name: tensor for name, tensor in other.items() if "lora_A" not in name
    }], [0.5, 0.5], "products")  # fmt: skip
    assert all(bool(torch.isfinite(tensor).all()) for tensor in found.values())


@pytest.mark.parametrize("dtype", ["(2,", "O", "<U4", "V8", "<f99999999999", 7, "<M8[s]"])
def test_arrays_are_of_plain_numbers(dtype: Any) -> None:
    frame = encode_frame(Update(1, {}, {}, np.zeros(2, np.uint8)))
    size = LENGTHS.unpack(frame[: LENGTHS.size])[1]
    body = frame[LENGTHS.size :]
    ((*rest, (tag, _, shape)),) = json.loads(body[:size])
    head = json.dumps([[*rest, [tag, dtype, shape]]]).encode()
    with pytest.raises(ValueError, match="no message that the receiver accepts"):
        decode_frame(head + body[size:], len(head), {"Update": Update})


@pytest.mark.parametrize(
    ("file", "changes"),
    [
        ("federation.json", {"settings": None}), ("federation.json", {"id": 3}),
        ("rounds/round_000002/round.json", {"given": None}), ("rounds/round_000002/round.json", {"given": {}}),
        ("rounds/round_000002/round.json", {"round": "second"}), ("rounds/round_000002/round.json", {"round": 7}),
        ("rounds/round_000002/round.json", {"apart": "far"}), ("rounds/round_000002/round.json", {"mixing": []}),
    ],
)  # fmt: skip
def test_a_file_that_holds_something_else_is_named(tmp_path: Path, file: str, changes: dict[str, Any]) -> None:
    with pytest.raises(KeyboardInterrupt):
        federate(settings(), tmp_path, on_round=stopping_after(2))
    table = json.loads((tmp_path / file).read_text())
    (tmp_path / file).write_text(json.dumps({**table, **changes}))
    with pytest.raises(ValueError, match=f"{file.split('/')[-1]} is damaged"):
        federate(settings(), tmp_path, resume=True)


@pytest.mark.parametrize("without", ["id", "given"])
def test_one_that_has_others_keys_is_damaged(tmp_path: Path, without: str) -> None:
    with pytest.raises(KeyboardInterrupt):
        federate(settings(), tmp_path, on_round=stopping_after(2))
    file = tmp_path / ("federation.json" if without == "id" else "rounds/round_000002/round.json")
    table = json.loads(file.read_text())
    del table[without]
    file.write_text(json.dumps({**table, "other": 1}))
    with pytest.raises(ValueError, match="is damaged"):
        federate(settings(), tmp_path, resume=True)


def test_what_was_given_is_looked_at_before_anybody_is_asked(tmp_path: Path, learners: type[Learner]) -> None:
    with pytest.raises(KeyboardInterrupt):
        federate(settings(), tmp_path, on_round=stopping_after(2))
    file = next((FederationFolder(tmp_path).round_folder(2) / "given" / "0").rglob("*.safetensors"))
    file.write_bytes(file.read_bytes()[:-9])
    learners.asked = []
    with pytest.raises(ValueError, match=r"given/0 is damaged"):
        federate(settings(), tmp_path, resume=True)
    assert learners.asked == []


def test_each_adapter_that_was_given_is_looked_at(tmp_path: Path, learners: type[Learner]) -> None:
    """Where each site has gone on from one of its own."""
    alone = settings(combine={"name": "alone"})
    with pytest.raises(KeyboardInterrupt):
        federate(alone, tmp_path, on_round=stopping_after(2))
    file = next((FederationFolder(tmp_path).round_folder(2) / "given" / "1").rglob("*.safetensors"))
    file.write_bytes(file.read_bytes()[:-9])
    learners.asked = []
    with pytest.raises(ValueError, match=r"given/1 is damaged"):
        federate(alone, tmp_path, resume=True)
    assert learners.asked == []


def test_a_line_of_the_ledger_that_was_cut_short_takes_no_other_with_it(tmp_path: Path) -> None:
    ledger = TransferLog(tmp_path / "ledger.jsonl")
    ledger.log_transfer(1, "north", "coordinator", {"a": b"1", "b": b"2"})
    whole = ledger.path.read_text()
    ledger.path.write_text(whole[:-7])
    TransferLog(ledger.path).log_transfer(2, "north", "coordinator", {"c": b"3"})
    assert [json.loads(line)["file"] for line in ledger.path.read_text().splitlines()] == ["a", "c"]


@pytest.mark.parametrize(
    ("folders", "said"),
    [
        ({"a": "x", "b": "x/y"}, "lies within the other's"), ({"a": "x/y/z", "b": "x"}, "lies within the other's"),
        ({"a": "runs/both", "b": "x"}, "is the federation's"), ({"a": "runs", "b": "x"}, "or around it"),
        ({"a": "runs/both/rounds", "b": "x"}, "or in it"), ({"a": "x", "A": "y"}, "one file's name on some systems"),
    ],
)  # fmt: skip
def test_what_is_a_sites_own_is_no_others(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, folders: dict[str, str], said: str
) -> None:
    monkeypatch.chdir(tmp_path)
    sites = {name: {"recipe": "demo", "folder": folder} for name, folder in folders.items()}
    with pytest.raises(ValueError, match=said):
        parse_federation({"name": "both", "sites": sites}, "both", tmp_path)


@pytest.mark.parametrize(
    "privacy", [{"clip": 1.0, "noise_multiplier": 1e-200}, {"clip": 1e300, "noise_multiplier": 1.0}]
)
def test_noise_that_hides_nothing_is_refused(privacy: dict[str, float]) -> None:
    with pytest.raises(ValueError, match=r"hides nothing|less than or equal to 1000000000"):
        settings(privacy=privacy, combine={"name": "average", "quantity": "factors"})


def test_frames_are_read_back() -> None:
    frame = encode_frame(Update(1, {"files": 1}, *pack_files(build_files({"actor": adapter(0)}, CONFIGURATIONS))))
    size = LENGTHS.unpack(frame[: LENGTHS.size])[1]
    assert decode_frame(frame[LENGTHS.size :], size, {"Update": Update}).report == {"files": 1}


def test_a_site_that_trains_a_policy_more_or_less_is_no_average() -> None:
    configs = {f"a/{CONFIG_FILE}": b"{}", f"b/{CONFIG_FILE}": b"{}"}
    one, more = {"a": adapter(0)}, {"a": adapter(0), "b": adapter(1)}
    for first, second in ((one, more), (more, one)):
        assert list(find_differences(configs, first, configs, second))


def test_two_names_of_one_folder_are_one_folder(tmp_path: Path) -> None:
    (tmp_path / "x").mkdir()
    (tmp_path / "y").symlink_to(tmp_path / "x")
    sites = {name: {"recipe": "demo", "folder": folder} for name, folder in (("a", "x"), ("b", "y"))}
    with pytest.raises(ValueError, match="the same folder"):
        parse_federation({"name": "both", "sites": sites}, "both", tmp_path)


def test_what_received_others_weights_is_not_the_best_any_more(tmp_path: Path) -> None:
    (folder := tmp_path / "step_000002").mkdir()
    for best, left in ((2, (0, -1.0)), (1, (1, 0.5))):
        table = {"files": {}, "best_step": best, "best_score": 0.5, "best_by": "reward"}
        (folder / "state.json").write_text(json.dumps({**table, "digest": digest_of_json(table)}))
        record: Any = SimpleNamespace(path=folder, state=SimpleNamespace(step=2))
        replace_adapters(record, {})
        after = json.loads((folder / "state.json").read_text())
        assert (after["best_step"], after["best_score"]) == left


def test_a_recipe_that_cannot_be_used_leaves_no_folder_in_the_way(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    path = tmp_path / "sites.toml"
    path.write_text('rounds = 1\nsteps = 1\n[sites.north]\nrecipe = "demo"\n[sites.south]\nrecipe = "deno"\n')
    assert "sites.south: " in run(capsys, "federate", str(path), status=2)
    assert [*tmp_path.iterdir()] == [path]
