"""Every number of a recipe has bounds that no sane run exceeds."""

from __future__ import annotations

import math
from collections.abc import Iterator
from types import UnionType
from typing import Annotated, Any, Union, get_args, get_origin

import pytest
from pydantic import BaseModel, ValidationError, create_model

from marft.common.packages import bundled_plugins
from marft.config import parse_recipe
from marft.config.plugins import find_plugin
from marft.config.run import RunSettings
from marft.config.sections import section_class, section_names
from marft.config.settings import Settings
from marft_lab.federated.settings import FederationSettings
from tests.helpers import recipe
from tests.plugin_kinds import KINDS

BEYOND = (1e30, -1e30, math.nan, math.inf, -math.inf, 10**30, -(10**30))


def tables(cls: type[BaseModel], known: set[type[BaseModel]]) -> Iterator[type[BaseModel]]:
    """A table and those inside it."""
    if cls not in known:
        known.add(cls)
        yield cls
        for field in cls.model_fields.values():
            for inner in parts(field.annotation):
                if isinstance(inner, type) and issubclass(inner, BaseModel):
                    yield from tables(inner, known)


def parts(annotation: Any) -> Iterator[Any]:
    yield annotation
    for inner in get_args(annotation):
        yield from parts(inner)


def is_number(annotation: Any) -> bool:
    if get_origin(annotation) is Annotated:
        return is_number(get_args(annotation)[0])
    if get_origin(annotation) in (Union, UnionType):
        return any(map(is_number, get_args(annotation)))
    return annotation in (int, float)


def takes(made: type[BaseModel], value: float) -> bool:
    try:
        made(x=value)
    except ValidationError:
        return False
    return True


def all_tables() -> list[type[BaseModel]]:
    known: set[type[BaseModel]] = set()
    found = [*tables(RunSettings, known), *tables(FederationSettings, known)]
    found += [table for name in section_names() for table in tables(section_class(name), known)]
    for kind in KINDS:
        for name in bundled_plugins(kind):
            found += tables(find_plugin(kind, name), known)
    return found


TABLES = all_tables()


@pytest.mark.parametrize("cls", TABLES, ids=lambda cls: cls.__name__)
def test_every_number_refuses_what_is_beyond_all_bounds(cls: type[BaseModel]) -> None:
    for name, field in cls.model_fields.items():
        if not is_number(field.annotation):
            continue
        made: Any = create_model(
            "Made", __base__=Settings, x=(Annotated[(field.annotation, *field.metadata, "bounded")], ...)
        )
        assert not [value for value in BEYOND if takes(made, value)], f"{cls.__name__}.{name}"
        low = next((rule.ge for rule in field.metadata if getattr(rule, "ge", None) is not None), None)
        assert low is None or low < 0 or not takes(made, -1), f"{cls.__name__}.{name}"


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("algorithm.entropy_coefficient", "1e9"), ("algorithm.nll_coefficient", "1e4"), ("algorithm.kl.coefficient", "1e5"),
        ("algorithm.reward.shaping_weight", "1e6"), ("algorithm.critic.coefficient", "1e6"),
        ("algorithm.optimizer.max_gradient_norm", "1e9"), ("rollout.timeout_seconds", "1e9"),
        ("policies.actor.lora.rank", "1000000"), ("policies.actor.lora.alpha", "1e9"),
        ("algorithm.objective", "{ name = 'ppo', dual_clip = 1e9 }"),
    ],
)  # fmt: skip
def test_nonsense_within_machine_numbers_is_refused_too(key: str, value: str) -> None:
    with pytest.raises(ValueError, match="less than or equal to"):
        parse_recipe(recipe(), (f"--{key}", value))


def test_many_unknown_keys_are_refused_at_once_and_counted() -> None:
    table = recipe() | {f"k{number}": number for number in range(100_000)} | {"x" * 10**6: 1}
    with pytest.raises(ValueError, match="and 99,981 more unknown keys") as caught:
        parse_recipe(table)
    assert len(str(caught.value)) < 50_000


def test_many_unknown_keys_cost_no_comparisons(monkeypatch: pytest.MonkeyPatch) -> None:
    from marft.config import settings

    compared = []
    monkeypatch.setattr(settings, "get_close_matches", lambda *a, **_: compared.append(a) or [])
    with pytest.raises(ValueError, match="unknown keys"):
        parse_recipe(recipe(training={f"k{number}": number for number in range(10_000)}))
    assert len(compared) <= 50
