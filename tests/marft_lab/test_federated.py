"""Sites that learn together: what is averaged, what graph they gossip over, what leaves them and what hides in it."""

from __future__ import annotations

import json
import math
import socket
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from marft.common.processes.messages import LENGTHS, decode_frame, encode_frame
from marft.models.adapter_files import CONFIG_FILE, WEIGHTS_FILE, read_lora_settings
from marft_lab.federated.adapter_io import (
    FIXED_CONFIG,
    build_files,
    find_differences,
    parse_files,
    read_adapters,
    serialize_weights,
    write_adapters,
)
from marft_lab.federated.aggregation import Adapter, average_adapters, average_products, rms_distance
from marft_lab.federated.combiners.alone import Alone
from marft_lab.federated.combiners.average import Average
from marft_lab.federated.combiners.gossip import Gossip
from marft_lab.federated.messages import (
    MAX_FRAME_BYTES,
    MESSAGE_TYPES,
    TrainRequest,
    Update,
    pack_files,
    receive,
    unpack_files,
)
from marft_lab.federated.privacy import compute_epsilon, gaussian_noise, global_norm, privatize_update
from marft_lab.federated.settings import check_unchanged, load_federation

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
    a, b = average_products(
        [s[f"{LAYER}.lora_A.weight"] for s in sites], [s[f"{LAYER}.lora_B.weight"] for s in sites], weights
    )
    whole = np.zeros((5, 7))
    for site, weight in zip(sites, weights, strict=True):  # the slow reference: the matrix itself, and what SVD leaves
        whole += weight * change(site).numpy()
    lost = np.linalg.svd(whole, compute_uv=False)[rank:]
    assert np.linalg.norm((b @ a).numpy() - whole) == pytest.approx(math.sqrt(float((lost**2).sum())), abs=1e-6)


def test_the_average_of_factors_is_not_that_of_products() -> None:
    sites = [adapter(0), adapter(1)]
    of_factors, of_products = (average_adapters(sites, [0.5, 0.5], of) for of in ("factors", "products"))  # type: ignore[arg-type]
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
    found = average_adapters([first, second], [0.25, 0.75], "products")
    assert torch.equal(found[name], first[name])
    other = name.replace("lora_A", "lora_B")
    assert torch.allclose(found[other], 0.25 * first[other] + 0.75 * second[other])


def test_an_a_that_only_some_have_is_not_that_of_all() -> None:
    first, second, third = adapter(0), adapter(1), adapter(2)
    second = {**second, f"{LAYER}.lora_A.weight": first[f"{LAYER}.lora_A.weight"]}
    whole = sum((change(one) for one in (first, second, third)), torch.zeros(5, 7)) / 3
    u, s, v = torch.linalg.svd(whole, full_matrices=False)
    nearest = u[:, :2] * s[:2] @ v[:2]
    assert torch.allclose(change(average_adapters([first, second, third], [1 / 3] * 3, "products")), nearest, atol=1e-5)


@pytest.mark.parametrize("of", ["products", "factors"])
def test_layers_are_averaged_one_by_one_and_named_in_the_order_of_the_first_site(of: str) -> None:
    """Also where the layers before have the same A at all sites."""
    one, other, more = adapter(0), adapter(1), adapter(2)
    one, other = ({**{f"first.{name}": tensor for name, tensor in more.items()}, **each} for each in (one, other))
    found = average_adapters([one, dict(reversed(other.items()))], [0.5, 0.5], of)  # type: ignore[arg-type]
    assert list(found) == list(one)
    alone = average_adapters([adapter(0), adapter(1)], [0.5, 0.5], of)  # type: ignore[arg-type]
    assert all(torch.allclose(found[name], alone[name], atol=1e-6) for name in alone)
    assert all(torch.allclose(found[f"first.{name}"], tensor) for name, tensor in more.items())


def test_a_layer_may_have_fewer_dimensions_than_its_adapter() -> None:
    sites = [adapter(at, rank=6) for at in range(2)]  # 5 × 7
    a, b = average_products(
        [site[f"{LAYER}.lora_A.weight"] for site in sites],
        [site[f"{LAYER}.lora_B.weight"] for site in sites],
        [0.5, 0.5],
    )
    assert (a.shape, b.shape) == ((6, 7), (5, 6))
    assert torch.allclose(b @ a, (change(sites[0]) + change(sites[1])) / 2)


def test_where_a_cancels_out_its_size_is_a_thousandth_of_that_of_single_ones() -> None:
    """Sizes of 15 and 5, with weights of 1/4 and 3/4, are 5 √3 in the root mean square."""
    a = torch.tensor([[3.0, 0.0, 0.0], [0.0, 4.0, 0.0]])
    b, other = torch.tensor([[2.0, 1.0], [0.0, 1.0]]), torch.tensor([[1.0, 1.0], [0.0, 0.0]])
    found, left = average_products([3 * a, -a], [b, other], [0.25, 0.75])
    assert torch.allclose(left @ found, 0.75 * (b - other).double() @ a.double())
    assert float(found.norm()) == pytest.approx(1e-3 * 5 * math.sqrt(3))


def test_an_a_of_zeros_changes_nothing_and_stays_finite() -> None:
    found, left = average_products([torch.zeros(2, 3)] * 2, [torch.ones(4, 2)] * 2, [0.5, 0.5])
    assert not (left @ found).any()
    assert float(found.norm()) == pytest.approx(math.sqrt(2))


def test_where_all_have_the_same_a_both_averages_change_the_same() -> None:
    sites = [adapter(0), {**adapter(1), f"{LAYER}.lora_A.weight": adapter(0)[f"{LAYER}.lora_A.weight"]}]
    of_factors, of_products = (average_adapters(sites, [0.25, 0.75], of) for of in ("factors", "products"))  # type: ignore[arg-type]
    assert torch.allclose(change(of_factors), change(of_products), atol=1e-5)


@pytest.mark.parametrize("seed", range(3, 9))
def test_factors_of_a_product_lie_near_the_sites_own(seed: int) -> None:
    site = adapter(seed, rank=3, width=64)
    near = {name: tensor + 0.01 * adapter(seed + 50, 3, 64)[name] for name, tensor in site.items()}
    found = average_adapters([site, near], [0.5, 0.5], "products")
    a, before = found[f"{LAYER}.lora_A.weight"], site[f"{LAYER}.lora_A.weight"]
    assert float((a * before).sum() / a.norm() / before.norm()) > 0.97
    assert float(a.norm()) == pytest.approx(float(before.norm()), rel=0.02)


def test_adapters_that_change_nothing_yet_are_averaged_to_nothing() -> None:
    sites = [{**adapter(at), f"{LAYER}.lora_B.weight": torch.zeros(5, 2)} for at in range(2)]
    found = average_adapters(sites, [0.5, 0.5], "products")
    assert not found[f"{LAYER}.lora_B.weight"].any()
    assert found[f"{LAYER}.lora_A.weight"].norm() > 0.1


def test_a_site_that_goes_on_from_its_own_keeps_it_to_the_bit() -> None:
    sites = [adapter(0), adapter(1)]
    assert all(
        torch.equal(tensor, sites[1][name]) for name, tensor in average_adapters(sites, [0, 1], "products").items()
    )
    small = {name: tensor.half() for name, tensor in sites[1].items()}
    assert {tensor.dtype for tensor in average_adapters([sites[0], small], [0, 1], "factors").values()} == {
        torch.float16
    }


@given(st.lists(st.integers(0, 9), min_size=2, max_size=5).filter(any))
def test_an_average_weighs_by_what_was_played(counts: list[int]) -> None:
    rows = Average(weight="episodes").mixing_weights(SITES[: len(counts)], counts)
    assert all(row == [count / sum(counts) for count in counts] for row in rows)


@given(st.sampled_from(["ring", "line", "star", "complete"]), st.integers(2, 5), st.integers(0, 31))
def test_gossip_keeps_the_mean_and_every_connected_graph_comes_to_it(graph: str, count: int, away: int) -> None:
    sites = SITES[:count]
    counts = [float(not away >> at & 1) for at in range(count)]
    mixing = np.array(Gossip(graph=graph).mixing_weights(sites, counts))  # type: ignore[arg-type]
    assert np.allclose(mixing, mixing.T)
    assert np.allclose(mixing.sum(0), 1)
    assert (mixing >= -1e-12).all()
    assert all(mixing[at, at] == 1 for at in range(count) if not counts[at])
    mixing = np.array(Gossip(graph=graph).mixing_weights(sites, [1.0] * count))  # type: ignore[arg-type]
    values = np.sort(np.abs(np.linalg.eigvalsh(mixing)))
    assert values[-2] < 1  # the spectral gap
    start = np.arange(count, dtype=float) ** 2
    apart = np.linalg.norm(start - start.mean())
    for times in range(1, 30):
        start = mixing @ start
        assert np.linalg.norm(start - start.mean()) <= values[-2] ** times * apart + 1e-9
    assert start.mean() == pytest.approx((np.arange(count) ** 2).mean())


def test_metropolis_weights_of_a_line_are_those_known_by_hand() -> None:
    rows = Gossip(graph="line").mixing_weights(("a", "b", "c"), [1, 1, 1])
    assert np.allclose(rows, [[2 / 3, 1 / 3, 0], [1 / 3, 1 / 3, 1 / 3], [0, 1 / 3, 2 / 3]])


def test_a_ring_of_four_is_closed_between_the_last_and_the_first() -> None:
    rows = Gossip(graph="ring").mixing_weights(("a", "b", "c", "d"), [1, 1, 1, 1])
    third = 1 / 3
    wanted = [[third, third, 0, third], [third, third, third, 0], [0, third, third, third], [third, 0, third, third]]
    assert np.allclose(rows, wanted)


def test_edges_may_be_named_either_way_round() -> None:
    rows = Gossip(graph="edges", edges=(("c", "a"), ("a", "b"))).mixing_weights(("a", "b", "c"), [1, 1, 1])
    assert np.allclose(rows, [[1 / 3, 1 / 3, 1 / 3], [1 / 3, 2 / 3, 0], [1 / 3, 0, 2 / 3]])


@pytest.mark.parametrize(("graph", "edges", "said"), [
    ("edges", ["ba", "cb", "dc", "ed", "fe", "gf", "hg"], []),
    ("line", ["aq"], ["combine.edges: the graph is a line, and has edges of its own; set graph = 'edges'"]),
    ("edges", ["aa", "az", "ay", "ax", "aw", "av", "au"], [f"combine.edges: no site is called 'u'; known: {', '.join('abcdefgh')}"]),
    ("edges", ["aa", "ab", "bc", "cd", "de", "ef", "fg", "gh"], ["combine.edges: a site is its own neighbour; leave that out"]),
    ("edges", ["ab", "cd", "ef", "gh"], ["combine.edges: nothing of 'a' ever reaches 'c'; connect them"]),
])  # fmt: skip
def test_a_graph_says_the_first_thing_that_is_wrong_with_it(graph: str, edges: list[str], said: list[str]) -> None:
    found = list(Gossip(graph=graph, edges=tuple(map(tuple, edges))).problems("abcdefgh"))  # type: ignore[arg-type]
    assert found == said


def test_alone_nothing_is_exchanged() -> None:
    assert Alone().mixing_weights(("a", "b"), [1, 0]) == [[1, 0], [0, 1]]


def test_distance_is_the_spread_of_sites() -> None:
    one = adapter(0)
    assert rms_distance([one, one]) == 0
    moved = {name: tensor + 1 for name, tensor in one.items()}
    assert rms_distance([one, moved]) == pytest.approx(math.sqrt(2 * 7 + 5 * 2) / 2, rel=1e-5)


def test_the_norm_is_of_all_numbers_together() -> None:
    assert global_norm({"a": torch.tensor([3.0]), "b": torch.tensor([[4.0], [12.0]])}) == pytest.approx(13.0)


@pytest.mark.parametrize(("clip", "share"), [(10.0, 1.0), (2.5, 0.5)])
def test_a_change_that_is_too_long_leaves_in_its_own_direction(clip: float, share: float) -> None:
    before, after = {"a": torch.tensor([1.0, 1.0])}, {"a": torch.tensor([4.0, 5.0])}  # 5 away
    leaving, norm = privatize_update(before, after, clip, 0.0, b"", "1")
    assert norm == pytest.approx(5.0)
    assert leaving["a"].tolist() == pytest.approx([1.0 + share * 3.0, 1.0 + share * 4.0])


def test_noise_is_of_what_is_hidden_and_not_of_its_order() -> None:
    before, after = adapter(0), adapter(1)
    one, _ = privatize_update(before, after, 1.0, 1.0, b"7", "1")
    again, _ = privatize_update(before, dict(reversed(after.items())), 1.0, 1.0, b"7", "1")
    assert list(one) == list(again)
    assert all(torch.equal(tensor, again[name]) for name, tensor in one.items())
    flat, _ = privatize_update({"a": torch.zeros(4)}, {"a": torch.zeros(4)}, 1.0, 1.0, b"7", "1")
    square, _ = privatize_update({"a": torch.zeros(2, 2)}, {"a": torch.zeros(2, 2)}, 1.0, 1.0, b"7", "1")
    assert not torch.equal(flat["a"], square["a"].flatten())


def test_noise_is_finite_and_symmetric_to_its_ends(monkeypatch: pytest.MonkeyPatch) -> None:
    ends = []
    for byte in (b"\0", b"\xff"):
        stream = SimpleNamespace(digest=lambda count, byte=byte: byte * count)
        with monkeypatch.context() as patched:
            patched.setattr("marft_lab.federated.privacy.hashlib.shake_256", lambda _, stream=stream: stream)
            ends.append(float(gaussian_noise(1, b"7", "1")))
    assert -9.0 < ends[0] == pytest.approx(-ends[1])
    assert ends[1] < 9.0


def test_of_no_numbers_there_is_no_noise() -> None:
    assert (gaussian_noise(0, b"7", "1").shape, gaussian_noise(0, b"7", "1").dtype) == ((0,), torch.float64)


def test_what_has_no_length_is_not_let_through() -> None:
    before, after = adapter(0), adapter(1)
    after[next(iter(after))][0, 0] = math.nan
    with pytest.raises(ValueError, match="what is no number"):
        privatize_update(before, after, 1.0, 0.0, b"", "1")


@given(st.floats(0.01, 100), st.integers(0, 20))
def test_what_leaves_has_changed_by_no_more_than_the_clip(clip: float, seed: int) -> None:
    before, after = adapter(0), adapter(seed)
    leaving, norm = privatize_update(before, after, clip, 0.0, b"", "1")
    moved = global_norm({name: leaving[name].double() - before[name].double() for name in before})
    assert norm == pytest.approx(global_norm({name: after[name].double() - before[name].double() for name in before}))
    assert moved == pytest.approx(min(norm, clip), rel=1e-4, abs=1e-5)


def test_noise_is_as_wide_as_it_says_and_of_its_round_and_site_alone() -> None:
    before = {"a": torch.zeros(200, 200)}
    one, again, other, elsewhere = (
        privatize_update(before, before, 2.0, 1.5, key, stream)[0]["a"]
        for key, stream in [(b"7", "1"), (b"7", "1"), (b"7", "2"), (b"8", "1")]
    )
    assert float(one.std()) == pytest.approx(3.0, rel=0.02)
    assert torch.equal(one, again)
    assert not torch.equal(one, other)
    assert not torch.equal(one, elsewhere)


def test_noise_is_standard_normal_and_every_bit_of_the_key_counts() -> None:
    drawn = gaussian_noise(200_000, b"\0" * 32, "a").numpy()
    below = torch.special.ndtr(torch.from_numpy(np.sort(drawn))).numpy()
    assert np.abs(below - (np.arange(200_000) + 0.5) / 200_000).max() < 1.95 / math.sqrt(200_000)  # Kolmogorov, 1e-3
    assert abs(np.corrcoef(drawn[1:], drawn[:-1])[0, 1]) < 0.01
    for bit in range(256):
        other = (1 << bit).to_bytes(32, "little")
        assert not np.allclose(gaussian_noise(4, other, "a"), drawn[:4])
    assert not np.allclose(gaussian_noise(4, b"\0" * 32, "b"), drawn[:4])


def test_no_two_updates_have_the_same_noise() -> None:
    """Two of one round, as where a folder is used again, would tell what they differ by."""
    given, one, other = adapter(0), adapter(1), adapter(2)
    left = [privatize_update(given, after, 1.0, 1.0, b"7", "1")[0] for after in (one, other)]
    noise = [
        {name: sent[name].double() - given[name] - clipped(given, after, 1.0)[name] for name in given}
        for sent, after in zip(left, (one, other), strict=True)
    ]
    assert all(not torch.allclose(noise[0][name], noise[1][name], atol=0.1) for name in given)
    moved = {name: tensor + 1e-3 for name, tensor in given.items()}
    again = privatize_update(
        moved, {name: one[name] - given[name] + moved[name] for name in given}, 1.0, 1.0, b"7", "1"
    )[0]
    assert all(not torch.allclose(again[name] - moved[name], left[0][name] - given[name], atol=0.1) for name in given)


def test_no_two_layers_have_the_same_noise() -> None:
    before = {name: torch.zeros(20, 20) for name in ("a", "b")}
    noise, _ = privatize_update(before, before, 1.0, 1.0, b"7", "1")
    assert not torch.equal(noise["a"], noise["b"])


def clipped(before: Adapter, after: Adapter, clip: float) -> Adapter:
    change = {name: after[name].double() - before[name].double() for name in before}
    return {name: tensor * min(1.0, clip / global_norm(change)) for name, tensor in change.items()}


def test_without_noise_there_is_no_privacy_once_anything_has_left() -> None:
    assert [compute_epsilon(rounds, 0.0, 1e-5) for rounds in (0, 1, 3)] == [0.0, math.inf, math.inf]


@pytest.mark.parametrize(("rounds", "noise"), [(1, 1.0), (10, 3.0), (400, 8.0)])
def test_epsilon_is_exact_to_many_digits(rounds: int, noise: float) -> None:
    found, mu = compute_epsilon(rounds, noise, 1e-5), math.sqrt(rounds) / noise
    near, far = (math.erfc((found / mu + side * mu / 2) / math.sqrt(2)) / 2 for side in (-1, 1))
    assert near - math.exp(found) * far == pytest.approx(1e-5, rel=1e-9)


@given(st.integers(1, 200), st.floats(0.5, 30), st.floats(1e-7, 0.1))
def test_epsilon_is_where_what_two_gaussians_tell_apart_is_delta(rounds: int, noise: float, delta: float) -> None:
    """δ(ε) = ∫ max(0, p(x) − e^ε q(x)) dx over R rounds, whose sums are Gaussian too."""
    mu, found = math.sqrt(rounds) / noise, compute_epsilon(rounds, noise, delta)
    x = np.linspace(-12, mu + 12, 200_001)
    p, q = (-((x - mean) ** 2) / 2 - math.log(2 * math.pi) / 2 for mean in (mu, 0.0))  # in logarithms
    told = np.maximum(0.0, np.exp(p) - np.exp(q + found)).sum() * (x[1] - x[0])
    assert told == pytest.approx(delta, rel=2e-2, abs=1e-9) if found else told <= delta * 1.02
    assert found <= rounds / (2 * noise**2) + math.sqrt(2 * rounds * math.log(1 / delta)) / noise, "Mironov 2017"


CONFIGURATION = {**FIXED_CONFIG, "peft_type": "LORA", "r": 2, "lora_alpha": 4.0, "target_modules": ["q_proj"]}


def folder_of(place: Path, one: Adapter) -> Path:
    config = {"peft_type": "LORA", "r": 2, "lora_alpha": 4.0, "target_modules": ["q_proj"], "task_type": "CAUSAL_LM",
              "base_model_name_or_path": "/home/secret/model", "revision": "private"}  # fmt: skip
    write_adapters(
        place, {f"actor/{WEIGHTS_FILE}": serialize_weights(one), f"actor/{CONFIG_FILE}": json.dumps(config).encode()}
    )
    return place


def test_numbers_leave_and_no_words(tmp_path: Path) -> None:
    files = build_files(*read_adapters(folder_of(tmp_path / "adapters", adapter(0))))
    assert not any(word in data for word in (b"secret", b"private") for data in files.values())
    adapters, _ = parse_files(files)
    assert all(torch.equal(adapters["actor"][name], tensor) for name, tensor in adapter(0).items())
    write_adapters(tmp_path / "arrived", files)
    assert read_lora_settings(tmp_path / "arrived" / "actor").alpha == 4.0


@pytest.mark.parametrize(
    ("name", "data", "said"),
    [
        ("../actor", b"", "no adapter's"),
        (f"actor/{WEIGHTS_FILE}", b"pickled", "cannot be read"),
        (f"actor/{WEIGHTS_FILE}", serialize_weights({"words": torch.zeros(2, 2)}), "no adapter's: 'words'"),
        (f"actor/{WEIGHTS_FILE}", serialize_weights({f"{LAYER}.lora_A.weight": torch.full((2, 2), math.nan)}), "no number"),
        (f"actor/{WEIGHTS_FILE}", serialize_weights(adapter(0)).replace(b"pt", b"pw"), "more than its numbers"),
        (f"actor/{CONFIG_FILE}", b'{"note": "a canary"}', "no configuration"),
        (f"actor/{CONFIG_FILE}", b"[", "no configuration"),
        *(
            (f"actor/{CONFIG_FILE}", json.dumps({**CONFIGURATION, key: "a canary"}).encode(), "no configuration")
            for key in (*FIXED_CONFIG, "peft_type")
        ),
    ],
)  # fmt: skip
def test_what_is_no_adapter_is_refused_where_it_arrives(tmp_path: Path, name: str, data: bytes, said: str) -> None:
    files = build_files(*read_adapters(folder_of(tmp_path / "adapters", adapter(0))))
    with pytest.raises(ValueError, match=said):
        parse_files({**files, name: data})


@pytest.mark.parametrize("other", [{"lora_alpha": 8.0}, {"target_modules": ["v_proj"]}])
def test_what_means_another_thing_in_the_same_numbers_is_no_average(other: dict[str, object]) -> None:
    one, two = ({f"actor/{CONFIG_FILE}": json.dumps({**CONFIGURATION, **more}).encode()} for more in ({}, other))
    adapters = {"actor": adapter(0)}
    assert list(find_differences(one, adapters, one, adapters)) == []
    assert "another lora.alpha, or other targets" in "".join(find_differences(one, adapters, two, adapters))


def test_what_is_longer_than_any_message_is_not_waited_for() -> None:
    here, there = socket.socketpair()
    with here, there:
        there.sendall(LENGTHS.pack(MAX_FRAME_BYTES + 1, 1))
        there.close()
        with pytest.raises(ValueError, match="no message of a federation"):
            receive(here)


def test_files_pass_through_a_frame_as_they_are() -> None:
    for files in ({}, {"a": b"", "b": b"123"}):
        frame = encode_frame(TrainRequest(1, 2, *pack_files(files)))
        _, size = LENGTHS.unpack(frame[: LENGTHS.size])
        assert unpack_files(decode_frame(frame[LENGTHS.size :], size, MESSAGE_TYPES)) == files
    with pytest.raises(ValueError, match="files of 2 bytes in 3"):
        unpack_files(Update(1, {}, {"a": 2}, pack_files({"a": b"123"})[1]))


TWO = 'sites = { north = { recipe = "demo" }, south = { recipe = "demo" } }\n'


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ('sites = { north = { recipe = "demo" } }', "at least 2"),
        (TWO + "min_sites = 3", "min_sites: 3 of 2"),
        (TWO + "privacy = { noise_multiplier = 1.0 }", "set clip"),
        (
            TWO + 'privacy = { noise_multiplier = 1.0, clip = 1.0 }\ncombine = { name = "average", weight = "tokens" }',
            "weight = 'equal'",
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
    free = {"name", "output", "rounds", "min_sites", "round_timeout_seconds", "max_retries", "keep_last"}
    for key in table:
        if key in free:
            check_unchanged(table, {**table, key: "another"})
        else:
            with pytest.raises(ValueError, match=f"but {key} is another"):
                check_unchanged(table, {**table, key: "another"})
