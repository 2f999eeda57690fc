"""The sheet's colours can be read, in both themes, and tell agents apart also for those who see fewer colours."""

from __future__ import annotations

import re
from itertools import combinations
from pathlib import Path

import pytest

import marft_serve

STATIC = Path(marft_serve.__file__).parent / "viewer" / "static"
SHEET = (STATIC / "viewer.css").read_text(encoding="utf-8")
MODULE = (STATIC / "colour.js").read_text(encoding="utf-8")
THEMES = {
    "light": r":root \{",
    "dark": r':root\[data-theme="dark"\] \{',
    "system": r':root:not\(\[data-theme="light"\]\) \{',
}


def colours(theme: str) -> dict[str, tuple[float, float, float]]:
    """The named colours of a theme, each [0, 1]^3."""
    found = re.search(THEMES[theme] + r"\s*color-scheme(.*?)\}", SHEET, re.DOTALL)
    assert found
    named = re.findall(r"--([\w-]+): #([0-9a-f]+);", found.group(1))
    return {name: _rgb(text if len(text) == 6 else "".join(c * 2 for c in text)) for name, text in named}


def _rgb(text: str) -> tuple[float, float, float]:
    red, green, blue = (int(text[n : n + 2], 16) / 255 for n in (0, 2, 4))
    return red, green, blue


def linear(colour: tuple[float, float, float]) -> list[float]:
    return [c / 12.92 if c <= 0.04045 else ((c + 0.055) / 1.055) ** 2.4 for c in colour]


def contrast(a: tuple[float, float, float], b: tuple[float, float, float]) -> float:
    """WCAG 2.2, relative luminance."""
    bright, dark = sorted(
        (sum(w * c for w, c in zip((0.2126, 0.7152, 0.0722), linear(x), strict=True)) for x in (a, b)), reverse=True
    )
    return (bright + 0.05) / (dark + 0.05)


@pytest.mark.parametrize("theme", THEMES)
def test_texts_can_be_read(theme: str) -> None:
    named = colours(theme)
    for ground in ("ground", "surface", "sunken"):
        assert contrast(named["text"], named[ground]) > 7
        assert contrast(named["muted"], named[ground]) > 4.5
        assert contrast(named["accent"], named[ground]) > 4.5
        assert contrast(named["faint"], named[ground]) > 4.5
        assert contrast(named["muted"], mixed(named["muted"], named[ground], share_in(".tag {"))) > 4.5
    assert contrast(named["accent"], named["accent-soft"]) > 4.5
    for kind in ("good", "bad", "warn"):
        assert contrast(named[kind], named[f"{kind}-soft"]) > 4.5
    assert contrast(named["on-accent"], named["accent"]) > 4.5


@pytest.mark.parametrize("theme", THEMES)
def test_words_in_an_agents_colour_or_on_it_can_be_read(theme: str) -> None:
    named = colours(theme)
    words = _rgb("ffffff" if theme == "light" else "0a1216")  # of bars
    (dimmed,) = re.findall(r"^\.act\.dim rect \{ opacity: ([\d.]+)", SHEET, re.MULTILINE)
    assert ":root .act.dim text { fill: var(--muted); }" in SHEET
    for series in (named[f"c{n}"] for n in range(8)):
        assert contrast(mixed(series, named["text"], share_in(".who {")), named["surface"]) > 4.5
        bar = mixed(series, named["text"], share_in("underWords"))
        assert contrast(words, bar) > 4.5
        assert contrast(named["muted"], mixed(bar, named["surface"], float(dimmed))) > 4.5


def test_the_words_of_bars_are_light_in_the_light_theme_and_dark_in_the_dark_one() -> None:
    fills = re.findall(r"^(.*)\.act text \{ fill: (\S+);", SHEET, re.MULTILINE)
    assert [fill for place, fill in fills if "worth-lanes" not in place] == ["#fff", "#0a1216", "#0a1216"]
    dark, system = (place for place, fill in fills if fill == "#0a1216")
    assert dark.strip() == ':root[data-theme="dark"]'
    assert system.strip() == '@media (prefers-color-scheme: dark) { :root:not([data-theme="light"])'


@pytest.mark.parametrize("theme", THEMES)
def test_figures_above_and_below_0_can_be_read(theme: str) -> None:
    named = colours(theme)
    found = re.search(THEMES[theme] + r"\s*color-scheme(.*?)\}", SHEET, re.DOTALL)
    assert found
    for sign, name in ((".plus {", "pos"), (".minus {", "neg")):
        ((red, green, blue),) = re.findall(rf"--{name}: (\d+) (\d+) (\d+)", found.group(1))
        figure = mixed((int(red) / 255, int(green) / 255, int(blue) / 255), named["text"], share_in(sign))
        assert all(contrast(figure, named[ground]) > 4.5 for ground in ("surface", "ground", "sunken"))


Rgb = tuple[float, float, float]


def mixed(a: Rgb, b: Rgb, share: float) -> Rgb:
    """``share`` of one colour, and the rest of another."""
    red, green, blue = (share * x + (1 - share) * y for x, y in zip(a, b, strict=True))
    return red, green, blue


def share_in(place: str) -> float:
    """How much there is of the first colour in the first mix behind these words of the sheet, or of its module."""
    found = re.search(re.escape(place) + r".*?color-mix\(in srgb, \S+ (\d+)%", SHEET + MODULE)
    assert found
    return int(found.group(1)) / 100


@pytest.mark.parametrize("theme", THEMES)
def test_numbers_can_be_read_on_what_contributed_most(theme: str) -> None:
    (most,) = re.findall(r"\$\{\((\d+) \* part\)", MODULE)
    found = re.search(THEMES[theme] + r"\s*color-scheme(.*?)\}", SHEET, re.DOTALL)
    assert found
    named, share = colours(theme), int(most) / 100
    for one in re.findall(r"--(?:pos|neg): (\d+) (\d+) (\d+)", found.group(1)):
        red, green, blue = (share * int(c) / 255 + (1 - share) * s for c, s in zip(one, named["surface"], strict=True))
        assert contrast(named["text"], (red, green, blue)) > 4.5


@pytest.mark.parametrize("theme", THEMES)
@pytest.mark.parametrize("ground", ["surface", "ground", "sunken"])
def test_tokens_can_be_read_over_the_whole_scale_of_their_colours(theme: str, ground: str) -> None:
    found = re.search(THEMES[theme] + r"\s*color-scheme(.*?)\}", SHEET, re.DOTALL)
    assert found
    (deep,) = re.findall(r"--deep: ([\d.]+);", found.group(1))
    named = colours(theme)
    scales = re.findall(r"--(?:pos|neg|seq): (\d+) (\d+) (\d+)", found.group(1))
    assert len(scales) == 3
    for part in range(101):
        share = float(deep) * part / 100
        for one in scales:
            red, green, blue = (share * int(c) / 255 + (1 - share) * g for c, g in zip(one, named[ground], strict=True))
            assert contrast(named["text"], (red, green, blue)) >= 4.5


@pytest.mark.parametrize("theme", THEMES)
def test_agents_stand_out_from_the_ground_and_from_each_other(theme: str) -> None:
    named = colours(theme)
    series = [named[f"c{n}"] for n in range(8)]
    assert all(contrast(one, named["surface"]) > 3 for one in series)
    for name, matrix in SEEN_AS.items():
        for a, b in combinations(series[:4], 2):
            assert _apart(a, b, matrix) > 12, f"{name} {a} {b}"


def test_both_ways_to_the_dark_theme_lead_to_the_same() -> None:
    assert colours("dark") == colours("system")


SEEN_AS = {  # linear RGB, after Machado, Oliveira and Fernandes (2009), severity 1
    "all": ((1, 0, 0), (0, 1, 0), (0, 0, 1)),
    "without red cones": (
        (0.152286, 1.052583, -0.204868),
        (0.114503, 0.786281, 0.099216),
        (-0.003882, -0.048116, 1.051998),
    ),
    "without green cones": (
        (0.367322, 0.860646, -0.227968),
        (0.280085, 0.672501, 0.047413),
        (-0.011820, 0.042940, 0.968881),
    ),
}


def _apart(
    a: tuple[float, float, float], b: tuple[float, float, float], matrix: tuple[tuple[float, ...], ...]
) -> float:
    """CIE 1976 difference of two colours as somebody sees them."""
    one, other = (_lab([sum(m * c for m, c in zip(row, linear(x), strict=True)) for row in matrix]) for x in (a, b))
    return sum((p - q) ** 2 for p, q in zip(one, other, strict=True)) ** 0.5


def _lab(rgb: list[float]) -> tuple[float, float, float]:
    to_xyz = ((0.4124, 0.3576, 0.1805), (0.2126, 0.7152, 0.0722), (0.0193, 0.1192, 0.9505))
    white = (0.9505, 1.0, 1.089)
    x, y, z = (
        _cube_root(sum(m * max(0.0, c) for m, c in zip(row, rgb, strict=True)) / w)
        for row, w in zip(to_xyz, white, strict=True)
    )
    return 116 * y - 16, 500 * (x - y), 200 * (y - z)


def _cube_root(value: float) -> float:
    return value ** (1 / 3) if value > 0.008856 else 7.787 * value + 16 / 116
