"""Callback state in a checkpoint: JSON values in ``callbacks.json``, arrays in ``callbacks.safetensors``."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path

import numpy as np
from safetensors import SafetensorError
from safetensors.numpy import load_file, save, save_file

from marft.common import atomic

JSON_FILE, ARRAY_FILE = "callbacks.json", "callbacks.safetensors"
States = Mapping[str, Mapping[str, object]]  # state by name of the callback


def write_callback_states(folder: Path, states: States) -> None:
    """Write the states of callbacks into a checkpoint's folder; nothing without states.

    Args:
        folder: folder of the checkpoint.
        states: JSON values and NumPy arrays by name, by name of the callback.

    Raises:
        ValueError: a value is neither JSON nor an array.
    """
    if not states:
        return
    arrays: dict[str, np.ndarray] = {}
    table: dict[str, dict[str, object]] = {}
    for name, state in states.items():
        table[name] = {key: value for key, value in state.items() if not isinstance(value, np.ndarray)}
        own_arrays = {key: value for key, value in state.items() if isinstance(value, np.ndarray)}
        try:
            if json.loads(json.dumps(table[name], allow_nan=False)) != table[name]:
                raise ValueError("a value changes when it is read back: keys are text, and lists are lists")
            # contiguous, and 0-dimensional arrays stay so
            new = {json.dumps([name, key]): np.asarray(value, order="C") for key, value in own_arrays.items()}
            save(new)
        except (TypeError, ValueError, KeyError, SafetensorError) as error:
            raise ValueError(
                f"callback {name!r}: its state cannot be saved: {error}; state_dict returns JSON values, and "
                "numbers in NumPy arrays"
            ) from error
        arrays |= new
    if arrays:
        save_file(arrays, folder / ARRAY_FILE)
    atomic.write_file(folder / JSON_FILE, json.dumps(table))


def read_callback_states(folder: Path) -> dict[str, dict[str, object]]:
    """Read the states of callbacks from a checkpoint's folder; empty if there are none.

    Raises:
        ValueError: the files cannot be read.
    """
    if not (folder / JSON_FILE).is_file():
        return {}
    try:
        states: dict[str, dict[str, object]] = {name: dict(state) for name, state in _read(folder / JSON_FILE).items()}
        arrays = load_file(folder / ARRAY_FILE) if (folder / ARRAY_FILE).is_file() else {}
        for label, array in arrays.items():
            name, key = json.loads(label)
            states[name][key] = array
    except (OSError, ValueError, KeyError, TypeError, AttributeError, SafetensorError) as error:
        raise ValueError(f"cannot read the state of callbacks in {folder}: {error}") from error
    return states


def _read(path: Path) -> Mapping[str, Mapping[str, object]]:
    table = atomic.read_json(path)
    if not isinstance(table, Mapping):
        raise TypeError(f"{path.name} is not a table")
    return table
