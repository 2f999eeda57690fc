"""What the page computes by itself, held to Python: numbers as the catalogue writes them, ticks, smoothing, layers."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from marft.common.metrics import CATALOG
from marft_serve.viewer.app import Viewer
from tests.browser.conftest import Seen, playwright, watched

pytestmark = pytest.mark.slow
VALUES = [0, 1, -1, 0.5, 0.12345, -0.0004, 1234.5678, 99_999, 3.2e-7, 12.4]


@pytest.fixture(scope="module")
def still(browser: playwright.Browser, viewer: Viewer) -> Iterator[Seen]:
    """One page for all."""
    yield from watched(browser, viewer)


def run(seen: Seen, module: str, expression: str, argument: object) -> Any:
    """What an expression over a module's names gives."""
    code = f"async (given) => {{ const m = await import('/static/{module}.js'); return {expression}; }}"
    return seen.page.evaluate(code, argument)


def test_numbers_are_written_as_the_catalogue_says(still: Seen) -> None:
    formats = sorted({metric.format for metrics in CATALOG.values() for metric in metrics})
    assert len(formats) > 5
    pairs = [(value, one) for one in formats for value in VALUES if not _is_tie(value, one)]
    shown = run(still, "format", "given.map(([value, format]) => m.formatted(value, format))", pairs)
    for (value, one), text in zip(pairs, shown, strict=True):
        plain = text.replace("−", "-").replace("\u202f", "")
        wanted = format(value, one)
        mantissa, _, power = wanted.partition("e")
        wanted = f"{mantissa}e{int(power):+d}" if power else wanted
        assert plain == (wanted.lstrip("-+") if float(mantissa.rstrip("%")) == 0 else wanted), (value, one)


def _is_tie(value: float, one: str) -> bool:
    """Halves, which Python rounds to even and JavaScript away from 0."""
    places = int(one.strip("+").strip(".")[0]) + (2 if one.endswith("%") else 0)
    return not one.endswith("e") and round(value * 10**places % 1, 9) == 0.5


def test_missing_numbers_are_a_dash(still: Seen) -> None:
    assert run(still, "format", "[null, undefined, NaN].map((one) => m.formatted(one, '.2f'))", None) == ["–"] * 3


@pytest.mark.parametrize(("low", "high"), [(0, 1), (-3.2, 7.9), (1e-7, 3e-7), (12_000, 250_000), (0.98, 0.99)])
def test_ticks_are_round_and_inside(still: Seen, low: float, high: float) -> None:
    ticks = run(still, "ticks", "m.linear(given[0], given[1], 5)", [low, high])
    assert 2 <= len(ticks) <= 8
    assert all(low - 1e-12 <= tick <= high * (1 + 1e-9) for tick in ticks)
    width = ticks[1] - ticks[0]
    assert float(f"{width:.0e}") == pytest.approx(width)
    assert f"{width:e}"[0] in "125"


def test_smoothing_is_an_average_without_a_pull_to_zero(still: Seen) -> None:
    values = [1.0, None, 3.0, 2.0, 5.0]
    smooth = run(still, "chart", "m.smoothed(given, 0.6)", values)
    known: list[float] = []
    for value, shown in zip(values, smooth, strict=True):
        if value is None:
            assert shown is None
            continue
        known.append(value)
        weights = [0.6**n for n in range(len(known))][::-1]
        assert shown == pytest.approx(sum(w * v for w, v in zip(weights, known, strict=True)) / sum(weights))


def test_an_agent_stands_to_the_right_of_what_it_saw_and_beside_its_peers(still: Seen) -> None:
    agents = [{"role": role} for role in "abcd"]
    edges = [{"from": a, "to": b, "count": 8} for a, b in ("ab", "ac", "bd", "cd", "ad", "bc", "cb")]
    edges += [{"from": "d", "to": "a", "count": 1}]  # seldom, and back
    assert run(still, "graph", "m.layers(...given)", [agents, edges]) == [0, 1, 1, 2]


def test_an_address_says_what_was_put_into_it(still: Seen) -> None:
    path, query = ["run", "a/b c", "episodes"], {"q": "1 + 1 = 2 & more", "step": ""}
    back = run(still, "route", "m.parse(m.href(...given))", [path, query])
    assert back == {"path": path, "query": {"q": query["q"]}}


def test_new_steps_are_added_once_whatever_answers_overlap(still: Seen) -> None:
    answers = [
        {"steps": steps, "series": {"kl": [s / 10 for s in steps]}} for steps in ([1, 2, 3], [3, 4], [2, 3, 4, 5])
    ]
    code = "(() => { const s = new m.Series(); given.forEach((one) => s.keep(s.of('r'), ['kl'], one)); return s.get('r', 'kl'); })()"
    assert run(still, "series", code, answers) == {"steps": [1, 2, 3, 4, 5], "values": [0.1, 0.2, 0.3, 0.4, 0.5]}
