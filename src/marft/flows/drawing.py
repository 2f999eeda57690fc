"""A picture of a network: nodes by how far they are from the source, edges by how often they are taken."""

from __future__ import annotations

from collections.abc import Mapping

from matplotlib.figure import Figure
from matplotlib.patches import FancyArrowPatch

from marft.flows.choosing import chances, odds
from marft.flows.network import SINK, SOURCE, FlowNetwork
from marft.texts import cut

LEAST = 0.02  # chance from which on an edge is drawn
SHOWN = 18  # characters of a name
