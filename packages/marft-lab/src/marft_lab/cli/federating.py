"""Command ``marft federate``: federated training between sites, with exchange limited to adapters."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from rich.text import Text

from marft.cli.commands import quieten
from marft.cli.errors import beside
from marft.cli.output import How, Output, output
from marft_lab.federated.settings import load_federation

if TYPE_CHECKING:
    from marft_lab.federated.history import Round


def federate(path: Path, resume: bool, dry_run: bool, how: How) -> None:
    """Train a federation up to its last round.

    Args:
        path: TOML file of the federation.
        resume: True to resume after the last finished round.
        dry_run: True to check the file and its recipes without training.
        how: output format.

    Raises:
        ValueError: invalid federation file or recipe.
    """
    settings = load_federation(path)
    folder = settings.folder
    with output(how) as out:
        if dry_run or not resume:  # checked before the folder exists, so that a corrected file does not collide with it
            from marft_lab.federated.recipes import check_recipes

            check_recipes(settings, folder)
        if dry_run:
            out.say(f"{len(settings.sites)} sites, {settings.rounds} rounds of {settings.steps} steps: "
                    f"{', '.join(settings.sites)}")  # fmt: skip
            out.tell("dry_run", settings=settings.model_dump(mode="json"))
            return
        beside(folder)
        quieten()
        from marft_lab.federated.coordinator import federate as run_federation

        rounds = run_federation(
            settings, folder, resume=resume, tell=lambda one: _tell(out, one, settings.rounds), note=out.note
        )
        out.tell("done", rounds=rounds[-1].round, federation=folder)
        name = next(iter(settings.sites))
        run = Path(settings.sites[name].folder or folder / "sites" / name) / "run"
        out.say(f"{rounds[-1].round} rounds. Each site has its run, that of {name}:  marft eval {run}")


def _tell(out: Output, one: Round, rounds: int) -> None:
    """Report a finished round, with one warning per skipped site."""
    from dataclasses import asdict

    out.tell("round", **asdict(one))
    changed = " ".join(f"{site} {norm:.3g}" for site, norm in one.norms.items())
    spent = "" if one.epsilon is None else f"  ε {one.epsilon:.3g}"
    before, after = one.apart
    if out.how == "":
        out.say(
            f"round {one.round}/{rounds}  changes: {changed or 'not told'}  apart {before:.3g} → {after:.3g}{spent}"
        )
    for site, why in one.left_out.items():
        out.say(Text(f"round {one.round}: went on without {site}, which {why}", style="yellow"))
