"""How torch's threads wait for each other is settled before torch is there, and is the user's to say."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

from marft.cli import WAIT_POLICY_VARIABLES, limit_spinning

LOOK = "import os, sys, marft; marft.train; assert 'torch' not in sys.modules; print(os.environ.get('GOMP_SPINCOUNT'))"
UNCHANGED = "import os; before = dict(os.environ); import marft; assert os.environ == before"


@pytest.mark.parametrize(("said", "spins"), [({}, "1000"), ({"GOMP_SPINCOUNT": "7"}, "7")])
def test_it_is_settled_where_something_is_trained(said: dict[str, str], spins: str) -> None:
    environment = {name: value for name, value in os.environ.items() if name not in WAIT_POLICY_VARIABLES} | said
    run = subprocess.run([sys.executable, "-c", LOOK], env=environment, capture_output=True, text=True, check=True)
    assert run.stdout.strip() == spins


def test_importing_marft_changes_no_environment_variable() -> None:
    environment = {name: value for name, value in os.environ.items() if name not in WAIT_POLICY_VARIABLES}
    subprocess.run([sys.executable, "-c", UNCHANGED], env=environment, check=True)


def test_whoever_has_chosen_a_policy_keeps_it() -> None:
    environment = {"OMP_WAIT_POLICY": "active"}
    limit_spinning(environment)
    assert environment == {"OMP_WAIT_POLICY": "active"}
