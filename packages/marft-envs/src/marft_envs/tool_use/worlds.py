"""Bundled service worlds by name."""

from __future__ import annotations

from collections.abc import Mapping

from marft_envs.tool_use.airline_goals import AIRLINE
from marft_envs.tool_use.goals import ServiceWorld
from marft_envs.tool_use.retail_goals import RETAIL
from marft_envs.tool_use.shop_goals import SHOP

WORLDS: Mapping[str, ServiceWorld] = {"shop": SHOP, "retail": RETAIL, "airline": AIRLINE}
