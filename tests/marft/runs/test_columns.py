"""Columns of episodes: derived from types, there and back."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from typing import Any, Literal, NamedTuple

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pytest

from marft.common.types import Action
from marft.runs.episode_files import SCHEMA, get_codec, get_codecs


class Pair(NamedTuple):
    low: int
    high: int


@dataclass(frozen=True)
class Inner:
    ids: npt.NDArray[np.int32]
    note: str | None = None


@dataclass(frozen=True)
class Whole:
    name: str
    kind: Literal["a", "b"]
    share: float
    right: bool
    pair: Pair
    some: tuple[Inner, ...] = ()
    rewards: Mapping[str, float] = field(default_factory=dict)
    maybe: Inner | None = None


def through_arrow(hint: Any, value: Any) -> Any:
    codec = get_codec(hint)
    table = pa.Table.from_pylist([{"x": codec.write(value)}], schema=pa.schema([("x", codec.arrow)]))
    return codec.read(table.to_pylist()[0]["x"])


def test_whatever_a_type_holds_comes_back_as_it_was() -> None:
    inner = Inner(np.array([3, 1], np.int32), "seen")
    whole = Whole("n", "b", 0.1, True, Pair(2, 5), (inner, Inner(np.empty(0, np.int32))), {"a": 1.5}, None)
    back = through_arrow(Whole, whole)
    assert (back.name, back.kind, back.share, back.right) == ("n", "b", 0.1, True)
    assert (back.pair, back.pair.high, dict(back.rewards), back.maybe) == (Pair(2, 5), 5, {"a": 1.5}, None)
    assert [one.note for one in back.some] == ["seen", None]
    assert [one.ids.tolist() for one in back.some] == [[3, 1], []]
    assert {one.ids.dtype for one in back.some} == {np.dtype(np.int32)}


def test_a_text_that_no_file_can_hold_is_stored_readably() -> None:
    assert through_arrow(str, "a\ud800b").encode() == through_arrow(str, "a\ud800b").encode()


@pytest.mark.parametrize(
    ("hint", "value"), [(bool | None, False), (float | None, 0.0), (str | None, ""), (int | None, None)]
)
def test_nothing_and_naught_are_not_the_same(hint: Any, value: Any) -> None:
    assert through_arrow(hint, value) == value


def test_a_name_that_no_file_can_hold_is_stored_readably() -> None:
    (name,) = through_arrow(Mapping[str, float], {"a\ud800b": 1.0})
    assert name.encode() == through_arrow(str, "a\ud800b").encode()


@pytest.mark.parametrize("hint", [int | str | None, tuple[int, str]])
def test_a_type_that_would_lose_something_has_no_column(hint: Any) -> None:
    with pytest.raises(TypeError, match="has no column"):
        get_codec(hint)


def test_every_field_of_an_action_is_a_column_and_is_added_in_one_place() -> None:
    assert {one.name for one in fields(Action)} <= set(SCHEMA.names)

    @dataclass(frozen=True, slots=True)
    class Longer(Action):
        mood: tuple[str, ...] = ()

    assert get_codecs(Longer)["mood"].arrow == pa.list_(pa.string())


def test_a_type_that_has_no_column_is_named() -> None:
    with pytest.raises(TypeError, match=r"dict\[str, object\] has no column"):
        get_codec(dict[str, object])
