"""``marft export`` and ``marft push``."""

from __future__ import annotations

import tomllib
from pathlib import Path

from marft.cli.errors import set_run_folder
from marft.cli.handlers import console, silence_transformers
from marft.runs.run_folder import RunFolder


def export(
    run: Path, checkpoint: str, output: Path | None, *, merged: bool, overwrite: bool, team_file: Path | None
) -> None:
    """``marft export``.

    Args:
        run: folder of a run.
        checkpoint: ``best``, ``last``, a step, or ``step_000050``.
        output: folder to write; None: ``exports/<run>``.
        merged: also write full weights with merged adapters.
        overwrite: overwrite an existing export.
        team_file: file of another team for the agents.
    """
    from marft.config.team_changes import read_team_change

    change = read_team_change(team_file) if team_file else None
    folder = RunFolder.open(run)
    set_run_folder(folder.path)
    silence_transformers()
    from marft.runs.export.exporter import export_run
    from marft.runs.export.manifest import RECIPE
    from marft.runs.export.recipe import trust_flag

    target = export_run(
        folder,
        checkpoint,
        output,
        merged=merged,
        overwrite=overwrite,
        target_team=change,
        note=lambda text: console.print(text, soft_wrap=True),
    )
    trust = trust_flag(tomllib.loads((target / RECIPE).read_text(encoding="utf-8")))
    console.print(f"wrote {target}. See {target / 'README.md'}, or:  marft serve {target}{trust}", soft_wrap=True)


def push(path: Path, repo_id: str, *, private: bool, token: str) -> None:
    """``marft push``.

    Args:
        path: folder of an export.
        repo_id: ``name/model`` on the Hugging Face hub.
        private: create the repository as private.
        token: token of the hub.
    """
    silence_transformers()
    from marft.runs.export.push import push_export as run_push

    console.print(f"see {run_push(path, repo_id, private=private, token=token)}", soft_wrap=True)
