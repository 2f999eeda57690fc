"""Fixed clock and deterministic UUIDs for one package.

Scenarios of ``tool_sandbox`` depend on their creation time. An hour later, a scenario's request could no longer be
fulfilled. An episode replayed from its seed would also differ.
"""

from __future__ import annotations

import datetime
import random
import sys
import uuid
from types import SimpleNamespace
from typing import Any


class FixedDatetime(datetime.datetime):
    """A clock that always returns the same time."""

    @classmethod
    def now(cls, tz: Any = None) -> Any:
        """Return the fixed time, in UTC without a timezone or in ``tz``."""
        fixed = cls(2024, 5, 15, 10, 30, tzinfo=datetime.timezone.utc)  # noqa: UP017  Python 3.9
        return fixed.astimezone(tz) if tz else fixed.replace(tzinfo=None)  # UTC in this process


class DeterministicUuids:
    """Deterministic replacement for ``uuid.uuid4``."""

    random = random.Random(0)  # random stream of the active episode

    @classmethod
    def uuid4(cls) -> uuid.UUID:
        """Return a UUID from the active episode's random stream."""
        return uuid.UUID(int=cls.random.getrandbits(128), version=4)


def install_fixed_clock(package: str) -> None:
    """Install the fixed clock and UUIDs in all imported modules from a package."""
    fixed_datetime = SimpleNamespace(**{**vars(datetime), "datetime": FixedDatetime})
    for name, module in list(sys.modules.items()):
        if name.split(".")[0] == package:
            if getattr(module, "datetime", None) is datetime:
                module.datetime = fixed_datetime  # type: ignore[attr-defined]
            if getattr(module, "uuid4", None) is uuid.uuid4:
                module.uuid4 = DeterministicUuids.uuid4  # type: ignore[attr-defined]
