"""Sites that learn together: what is averaged, what graph they gossip over, what leaves them and what hides in it."""

from __future__ import annotations

import json
import math
import socket
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from marft.config.federation import load_federation, refuse_other
from marft.engines.apart.frames import LENGTHS, packed, unpacked
from marft.federated.combiners.alone import Alone
from marft.federated.combiners.average import Average
from marft.federated.combiners.gossip import Gossip
from marft.federated.mixing import Adapter, distance, mixed, product_of_rank
from marft.federated.parcels import FIXED, differences, files_with, opened, read_folder, weights_of, write_folder
from marft.federated.privacy import epsilon, gaussian, hidden, norm_of
from marft.federated.words import KINDS, LARGEST, Asked, Update, data_of, files_of, receive
from marft.models.adapters import CONFIG, WEIGHTS, read_lora_settings

LAYER = "base_model.model.model.layers.0.self_attn.q_proj"
SITES = ("north", "south", "east", "west", "middle")


def adapter(seed: int, rank: int = 2, width: int = 7, out: int = 5) -> Adapter:
    generator = torch.Generator().manual_seed(seed)
    return {
        f"{LAYER}.lora_A.weight": torch.randn(rank, width, generator=generator),
        f"{LAYER}.lora_B.weight": torch.randn(out, rank, generator=generator),
    }


def change(one: Adapter) -> Tensor:
    return one[f"{LAYER}.lora_B.weight"].double() @ one[f"{LAYER}.lora_A.weight"].double()


weights_of_sites = st.lists(st.integers(1, 9), min_size=2, max_size=4).map(lambda w: [one / sum(w) for one in w])


@given(weights_of_sites, st.integers(0, 100), st.integers(1, 6))
def test_the_average_of_products_is_the_nearest_of_its_rank(weights: list[float], seed: int, rank: int) -> None:
    sites = [adapter(seed + at, rank) for at in range(len(weights))]
    a, b = product_of_rank(
        [s[f"{LAYER}.lora_A.weight"] for s in sites], [s[f"{LAYER}.lora_B.weight"] for s in sites], weights
    )
    whole = np.zeros((5, 7))
    for site, weight in zip(sites, weights, strict=True):  # the slow reference: the matrix itself, and what SVD leaves
        whole += weight * change(site).numpy()
    lost = np.linalg.svd(whole, compute_uv=False)[rank:]
    assert np.linalg.norm((b @ a).numpy() - whole) == pytest.approx(math.sqrt(float((lost**2).sum())), abs=1e-6)


def test_the_average_of_factors_is_not_that_of_products() -> None:
    sites = [adapter(0), adapter(1)]
    of_factors, of_products = (mixed(sites, [0.5, 0.5], of) for of in ("factors", "products"))  # type: ignore[arg-type]
    wanted = (change(sites[0]) + change(sites[1])) / 2
    assert torch.allclose(
        of_factors[f"{LAYER}.lora_A.weight"],
        (sites[0][f"{LAYER}.lora_A.weight"] + sites[1][f"{LAYER}.lora_A.weight"]) / 2,
    )
    assert (change(of_products) - wanted).norm() < 0.9 * (change(of_factors) - wanted).norm()


def test_an_a_that_all_have_stays_as_it_is() -> None:
    """As where B alone learns: an A that were turned each round would be another one."""
    first, second = adapter(0), adapter(1)
    name = next(name for name in first if ".lora_A." in name)
    second = {**second, name: first[name]}
    found = mixed([first, second], [0.25, 0.75], "products")
    assert torch.equal(found[name], first[name])
    other = name.replace("lora_A", "lora_B")
    assert torch.allclose(found[other], 0.25 * first[other] + 0.75 * second[other])


def test_where_all_have_the_same_a_both_averages_change_the_same() -> None:
    sites = [adapter(0), {**adapter(1), f"{LAYER}.lora_A.weight": adapter(0)[f"{LAYER}.lora_A.weight"]}]
    of_factors, of_products = (mixed(sites, [0.25, 0.75], of) for of in ("factors", "products"))  # type: ignore[arg-type]
    assert torch.allclose(change(of_factors), change(of_products), atol=1e-5)


@pytest.mark.parametrize("seed", range(3, 9))
def test_factors_of_a_product_lie_near_the_sites_own(seed: int) -> None:
    site = adapter(seed, rank=3, width=64)
    near = {name: tensor + 0.01 * adapter(seed + 50, 3, 64)[name] for name, tensor in site.items()}
    found = mixed([site, near], [0.5, 0.5], "products")
    a, before = found[f"{LAYER}.lora_A.weight"], site[f"{LAYER}.lora_A.weight"]
    assert float((a * before).sum() / a.norm() / before.norm()) > 0.97
    assert float(a.norm()) == pytest.approx(float(before.norm()), rel=0.02)


def test_adapters_that_change_nothing_yet_are_averaged_to_nothing() -> None:
    sites = [{**adapter(at), f"{LAYER}.lora_B.weight": torch.zeros(5, 2)} for at in range(2)]
    found = mixed(sites, [0.5, 0.5], "products")
    assert not found[f"{LAYER}.lora_B.weight"].any()
    assert found[f"{LAYER}.lora_A.weight"].norm() > 0.1


def test_a_site_that_goes_on_from_its_own_keeps_it_to_the_bit() -> None:
    sites = [adapter(0), adapter(1)]
    assert all(torch.equal(tensor, sites[1][name]) for name, tensor in mixed(sites, [0, 1], "products").items())


@given(st.lists(st.integers(0, 9), min_size=2, max_size=5).filter(any))
def test_an_average_weighs_by_what_was_played(counts: list[int]) -> None:
    rows = Average(weight="episodes").mixing(SITES[: len(counts)], counts)
    assert all(row == [count / sum(counts) for count in counts] for row in rows)


@given(st.sampled_from(["ring", "line", "star", "complete"]), st.integers(2, 5), st.integers(0, 31))
def test_gossip_keeps_the_mean_and_every_connected_graph_comes_to_it(graph: str, count: int, away: int) -> None:
    sites = SITES[:count]
    counts = [float(not away >> at & 1) for at in range(count)]
    mixing = np.array(Gossip(graph=graph).mixing(sites, counts))  # type: ignore[arg-type]
    assert np.allclose(mixing, mixing.T)
    assert np.allclose(mixing.sum(0), 1)
    assert (mixing >= -1e-12).all()
    assert all(mixing[at, at] == 1 for at in range(count) if not counts[at])
    mixing = np.array(Gossip(graph=graph).mixing(sites, [1.0] * count))  # type: ignore[arg-type]
    values = np.sort(np.abs(np.linalg.eigvalsh(mixing)))
    assert values[-2] < 1  # the spectral gap
    start = np.arange(count, dtype=float) ** 2
    apart = np.linalg.norm(start - start.mean())
    for times in range(1, 30):
        start = mixing @ start
        assert np.linalg.norm(start - start.mean()) <= values[-2] ** times * apart + 1e-9
    assert start.mean() == pytest.approx((np.arange(count) ** 2).mean())


def test_metropolis_weights_of_a_line_are_those_known_by_hand() -> None:
    rows = Gossip(graph="line").mixing(("a", "b", "c"), [1, 1, 1])
    assert np.allclose(rows, [[2 / 3, 1 / 3, 0], [1 / 3, 1 / 3, 1 / 3], [0, 1 / 3, 2 / 3]])


def test_alone_nothing_is_exchanged() -> None:
    assert Alone().mixing(("a", "b"), [1, 0]) == [[1, 0], [0, 1]]


def test_distance_is_the_spread_of_sites() -> None:
    one = adapter(0)
    assert distance([one, one]) == 0
    moved = {name: tensor + 1 for name, tensor in one.items()}
    assert distance([one, moved]) == pytest.approx(math.sqrt(2 * 7 + 5 * 2) / 2, rel=1e-5)


def test_what_has_no_length_is_not_let_through() -> None:
    before, after = adapter(0), adapter(1)
    after[next(iter(after))][0, 0] = math.nan
    with pytest.raises(ValueError, match="what is no number"):
        hidden(before, after, 1.0, 0.0, b"", "1")


@given(st.floats(0.01, 100), st.integers(0, 20))
def test_what_leaves_has_changed_by_no_more_than_the_clip(clip: float, seed: int) -> None:
    before, after = adapter(0), adapter(seed)
    leaving, norm = hidden(before, after, clip, 0.0, b"", "1")
    moved = norm_of({name: leaving[name].double() - before[name].double() for name in before})
    assert norm == pytest.approx(norm_of({name: after[name].double() - before[name].double() for name in before}))
    assert moved == pytest.approx(min(norm, clip), rel=1e-4, abs=1e-5)


def test_noise_is_as_wide_as_it_says_and_of_its_round_and_site_alone() -> None:
    before = {"a": torch.zeros(200, 200)}
    one, again, other, elsewhere = (
        hidden(before, before, 2.0, 1.5, key, stream)[0]["a"]
        for key, stream in [(b"7", "1"), (b"7", "1"), (b"7", "2"), (b"8", "1")]
    )
    assert float(one.std()) == pytest.approx(3.0, rel=0.02)
    assert torch.equal(one, again)
    assert not torch.equal(one, other)
    assert not torch.equal(one, elsewhere)


def test_noise_is_standard_normal_and_every_bit_of_the_key_counts() -> None:
    drawn = gaussian(200_000, b"\0" * 32, "a").numpy()
    below = torch.special.ndtr(torch.from_numpy(np.sort(drawn))).numpy()
    assert np.abs(below - (np.arange(200_000) + 0.5) / 200_000).max() < 1.95 / math.sqrt(200_000)  # Kolmogorov, 1e-3
    assert abs(np.corrcoef(drawn[1:], drawn[:-1])[0, 1]) < 0.01
    for bit in range(256):
        other = (1 << bit).to_bytes(32, "little")
        assert not np.allclose(gaussian(4, other, "a"), drawn[:4])
    assert not np.allclose(gaussian(4, b"\0" * 32, "b"), drawn[:4])


def test_no_two_updates_have_the_same_noise() -> None:
    """Two of one round, as where a folder is used again, would tell what they differ by."""
    given, one, other = adapter(0), adapter(1), adapter(2)
    left = [hidden(given, after, 1.0, 1.0, b"7", "1")[0] for after in (one, other)]
    noise = [
        {name: sent[name].double() - given[name] - clipped(given, after, 1.0)[name] for name in given}
        for sent, after in zip(left, (one, other), strict=True)
    ]
    assert all(not torch.allclose(noise[0][name], noise[1][name], atol=0.1) for name in given)
    moved = {name: tensor + 1e-3 for name, tensor in given.items()}
    again = hidden(moved, {name: one[name] - given[name] + moved[name] for name in given}, 1.0, 1.0, b"7", "1")[0]
    assert all(not torch.allclose(again[name] - moved[name], left[0][name] - given[name], atol=0.1) for name in given)


def test_no_two_layers_have_the_same_noise() -> None:
    before = {name: torch.zeros(20, 20) for name in ("a", "b")}
    noise, _ = hidden(before, before, 1.0, 1.0, b"7", "1")
    assert not torch.equal(noise["a"], noise["b"])


def clipped(before: Adapter, after: Adapter, clip: float) -> Adapter:
    change = {name: after[name].double() - before[name].double() for name in before}
    return {name: tensor * min(1.0, clip / norm_of(change)) for name, tensor in change.items()}


@given(st.integers(1, 200), st.floats(0.5, 30), st.floats(1e-7, 0.1))
def test_epsilon_is_where_what_two_gaussians_tell_apart_is_delta(rounds: int, noise: float, delta: float) -> None:
    """δ(ε) = ∫ max(0, p(x) − e^ε q(x)) dx over R rounds, whose sums are Gaussian too."""
    mu, found = math.sqrt(rounds) / noise, epsilon(rounds, noise, delta)
    x = np.linspace(-12, mu + 12, 200_001)
    p, q = (-((x - mean) ** 2) / 2 - math.log(2 * math.pi) / 2 for mean in (mu, 0.0))  # in logarithms
    told = np.maximum(0.0, np.exp(p) - np.exp(q + found)).sum() * (x[1] - x[0])
    assert told == pytest.approx(delta, rel=2e-2, abs=1e-9) if found else told <= delta * 1.02
    assert found <= rounds / (2 * noise**2) + math.sqrt(2 * rounds * math.log(1 / delta)) / noise, "Mironov 2017"


CONFIGURATION = {**FIXED, "peft_type": "LORA", "r": 2, "lora_alpha": 4.0, "target_modules": ["q_proj"]}


def folder_of(place: Path, one: Adapter) -> Path:
    config = {"peft_type": "LORA", "r": 2, "lora_alpha": 4.0, "target_modules": ["q_proj"], "task_type": "CAUSAL_LM",
              "base_model_name_or_path": "/home/secret/model", "revision": "private"}  # fmt: skip
    write_folder(place, {f"actor/{WEIGHTS}": weights_of(one), f"actor/{CONFIG}": json.dumps(config).encode()})
    return place


def test_numbers_leave_and_no_words(tmp_path: Path) -> None:
    files = files_with(*read_folder(folder_of(tmp_path / "adapters", adapter(0))))
    assert not any(word in data for word in (b"secret", b"private") for data in files.values())
    adapters, _ = opened(files)
    assert all(torch.equal(adapters["actor"][name], tensor) for name, tensor in adapter(0).items())
    write_folder(tmp_path / "arrived", files)
    assert read_lora_settings(tmp_path / "arrived" / "actor").alpha == 4.0


@pytest.mark.parametrize(
    ("name", "data", "said"),
    [
        ("../actor", b"", "no adapter's"),
        (f"actor/{WEIGHTS}", b"pickled", "cannot be read"),
        (f"actor/{WEIGHTS}", weights_of({"words": torch.zeros(2, 2)}), "no adapter's: 'words'"),
        (f"actor/{WEIGHTS}", weights_of({f"{LAYER}.lora_A.weight": torch.full((2, 2), math.nan)}), "no number"),
        (f"actor/{WEIGHTS}", weights_of(adapter(0)).replace(b"pt", b"pw"), "more than its numbers"),
        (f"actor/{CONFIG}", b'{"note": "a canary"}', "no configuration"),
        (f"actor/{CONFIG}", b"[", "no configuration"),
        *(
            (f"actor/{CONFIG}", json.dumps({**CONFIGURATION, key: "a canary"}).encode(), "no configuration")
            for key in (*FIXED, "peft_type")
        ),
    ],
)  # fmt: skip
def test_what_is_no_adapter_is_refused_where_it_arrives(tmp_path: Path, name: str, data: bytes, said: str) -> None:
    files = files_with(*read_folder(folder_of(tmp_path / "adapters", adapter(0))))
    with pytest.raises(ValueError, match=said):
        opened({**files, name: data})


@pytest.mark.parametrize("other", [{"lora_alpha": 8.0}, {"target_modules": ["v_proj"]}])
def test_what_means_another_thing_in_the_same_numbers_is_no_average(other: dict[str, object]) -> None:
    one, two = ({f"actor/{CONFIG}": json.dumps({**CONFIGURATION, **more}).encode()} for more in ({}, other))
    adapters = {"actor": adapter(0)}
    assert list(differences(one, adapters, one, adapters)) == []
    assert "another lora.alpha, or other targets" in "".join(differences(one, adapters, two, adapters))


def test_what_is_longer_than_any_message_is_not_waited_for() -> None:
    here, there = socket.socketpair()
    with here, there:
        there.sendall(LENGTHS.pack(LARGEST + 1, 1))
        there.close()
        with pytest.raises(ValueError, match="no message of a federation"):
            receive(here)


def test_files_pass_through_a_frame_as_they_are() -> None:
    for files in ({}, {"a": b"", "b": b"123"}):
        frame = packed(Asked(1, 2, *data_of(files)))
        _, size = LENGTHS.unpack(frame[: LENGTHS.size])
        assert files_of(unpacked(frame[LENGTHS.size :], size, KINDS)) == files
    with pytest.raises(ValueError, match="files of 2 bytes in 3"):
        files_of(Update(1, {}, {"a": 2}, data_of({"a": b"123"})[1]))


TWO = 'sites = { north = { recipe = "demo" }, south = { recipe = "demo" } }\n'


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ('sites = { north = { recipe = "demo" } }', "at least 2"),
        (TWO + "at_least = 3", "at_least: 3 of 2"),
        (TWO + "privacy = { noise = 1.0 }", "set clip"),
        (
            TWO + 'privacy = { noise = 1.0, clip = 1.0 }\ncombine = { name = "average", weight = "tokens" }',
            "weight = 'equally'",
        ),
        (TWO + 'combine = { name = "gossip", graph = "edges" }', "nothing of 'north' ever reaches 'south'"),
        (TWO + 'combine = { name = "gossip", graph = "edges", edges = [["north", "sout"]] }', "did you mean 'south'"),
        (
            TWO + 'combine = { name = "gossip", graph = "edges", edges = [["north", "south"], ["south", "south"]] }',
            "its own neighbour",
        ),
        (TWO + 'combine = { name = "gossip", edges = [["north", "south"]] }', "set graph = 'edges'"),
        (TWO + 'combine = { name = "averge" }', "did you mean 'average'"),
        (TWO + "round = 3", "did you mean 'rounds'"),
        ('sites = { a = { recipe = "demo", folder = "x" }, b = { recipe = "demo", folder = "x" } }', "the same folder"),
        ('sites = { a = { recipe = "demo", folder = "x" }, b = { recipe = "demo", folder = "./x" } }', "same folder"),
        ("rounds = [", "not valid TOML"),
    ],
)
def test_a_federation_that_cannot_be_says_why(tmp_path: Path, text: str, said: str) -> None:
    (tmp_path / "two.toml").write_text(text)
    with pytest.raises(ValueError, match=said):
        load_federation(tmp_path / "two.toml")


def test_a_federation_goes_on_with_what_shaped_it(tmp_path: Path) -> None:
    (tmp_path / "two.toml").write_text(TWO)
    table = load_federation(tmp_path / "two.toml").model_dump(mode="json")
    free = {"name", "output", "rounds", "at_least", "patience_seconds", "tries", "keep_last"}
    for key in table:
        if key in free:
            refuse_other(table, {**table, key: "another"})
        else:
            with pytest.raises(ValueError, match=f"but {key} is another"):
                refuse_other(table, {**table, key: "another"})
