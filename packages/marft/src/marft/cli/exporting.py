"""``marft export`` and ``marft push``."""

from __future__ import annotations

import tomllib
from pathlib import Path

from marft.cli.commands import console, quieten
from marft.cli.errors import beside
from marft.runs.folder import RunFolder


def export(
    run: Path, checkpoint: str, output: Path | None, *, merged: bool, force: bool, organized: Path | None
) -> None:  # fmt: skip
    """``marft export``.

    Args:
        run: folder of a run.
        checkpoint: ``best``, ``last``, a step, or ``step_000050``.
        output: folder to write; None: ``exports/<run>``.
        merged: also write full weights with merged adapters.
        force: overwrite an existing export.
        organized: file of another team for the agents.
    """
    from marft.config.reorganizing import read_reorganization

    into = read_reorganization(organized) if organized else None
    folder = RunFolder.open(run)
    beside(folder.path)
    quieten()
    from marft.runs.export.manifest import RECIPE
    from marft.runs.export.recipe import trust_flag
    from marft.runs.export.writing import export_run

    written = export_run(
        folder, checkpoint, output, merged=merged, force=force, into=into,
        note=lambda text: console.print(text, soft_wrap=True),
    )  # fmt: skip
    trust = trust_flag(tomllib.loads((written / RECIPE).read_text(encoding="utf-8")))
    console.print(f"wrote {written}. See {written / 'README.md'}, or:  marft serve {written}{trust}", soft_wrap=True)


def push(path: Path, repo_id: str, *, private: bool, token: str) -> None:
    """``marft push``.

    Args:
        path: folder of an export.
        repo_id: ``name/model`` on the Hugging Face hub.
        private: create the repository as private.
        token: token of the hub.
    """
    quieten()
    from marft.runs.export.push import push as run_push

    console.print(f"see {run_push(path, repo_id, private=private, token=token)}", soft_wrap=True)
