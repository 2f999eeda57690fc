"""The world of programs: drawn problems, published layouts, and how an attempt goes."""

from __future__ import annotations

import asyncio
import base64
import json
import pickle
import zlib
from collections.abc import Mapping
from pathlib import Path
from random import Random

import pytest
from hypothesis import given
from hypothesis import settings as examples
from hypothesis import strategies as st
from pydantic import ValidationError

from marft.config import parse_recipe
from marft.envs.code.drawing import drawn, problem_of
from marft.envs.code.environment import Code
from marft.envs.code.judging import Call, Feed, JudgingError
from marft.envs.code.packed import unpacked
from marft.envs.code.phrases import Step, in_code, in_words, mistakes, steps_in, value_of
from marft.envs.code.session import Attempt
from marft.envs.scripts import Cue
from marft.sandbox.runner import isolation_problem
from marft.types import JointAction, Observation
from marft.types import Step as Moved
from tests.test_drawn import contents  # noqa: F401
from tests.episodes import action

isolated = pytest.mark.skipif(bool(isolation_problem()), reason=f"no isolation here: {isolation_problem()}")
