"""A clock and identifiers that are the same each time, for one package and no other.

Scenarios of ``tool_sandbox`` are made from the time at which they are made, so an hour later nobody could do what they
ask; and an episode that is played again by its seed would be another one.
"""

from __future__ import annotations

import datetime
import random
import sys
import uuid
from types import SimpleNamespace
from typing import Any


class Still(datetime.datetime):
    """A clock that stands still."""

    @classmethod
    def now(cls, tz: Any = None) -> Any:
        still = cls(2024, 5, 15, 10, 30, tzinfo=datetime.timezone.utc)  # noqa: UP017  Python 3.9
        return still.astimezone(tz) if tz else still.replace(tzinfo=None)  # which is UTC here


class Identifiers:
    """In the place of ``uuid.uuid4``."""

    random = random.Random(0)  # of the episode that is being played

    @classmethod
    def uuid4(cls) -> uuid.UUID:
        return uuid.UUID(int=cls.random.getrandbits(128), version=4)


def hold_still(package: str) -> None:
    """Give all modules of a package that are imported this clock and these identifiers."""
    clock = SimpleNamespace(**{**vars(datetime), "datetime": Still})
    for name, module in list(sys.modules.items()):
        if name.split(".")[0] == package:
            if getattr(module, "datetime", None) is datetime:
                module.datetime = clock  # type: ignore[attr-defined]
            if getattr(module, "uuid4", None) is uuid.uuid4:
                module.uuid4 = Identifiers.uuid4  # type: ignore[attr-defined]
