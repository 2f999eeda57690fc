"""Command ``marft federate``: federated training between sites, with exchange limited to adapters."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from rich.text import Text

from marft.cli.errors import set_run_folder
from marft.cli.handlers import silence_transformers
from marft.cli.output import Output, OutputMode, open_output
from marft_lab.federated.settings import load_federation

if TYPE_CHECKING:
    from marft_lab.federated.federation_folder import RoundRecord


def federate(path: Path, resume: bool, dry_run: bool, output_mode: OutputMode) -> None:
    """Train a federation up to its last round.

    Args:
        path: TOML file of the federation.
        resume: True to resume after the last finished round.
        dry_run: True to check the file and its recipes without training.
        output_mode: output format.

    Raises:
        ValueError: invalid federation file or recipe.
    """
    settings = load_federation(path)
    folder = settings.folder
    with open_output(output_mode) as out:
        if dry_run or not resume:  # checked before the folder exists, so that a corrected file does not collide with it
            from marft_lab.federated.settings import check_recipes

            check_recipes(settings, folder)
        if dry_run:
            out.print(
                f"{len(settings.sites)} sites, {settings.rounds} rounds of {settings.steps} steps: "
                f"{', '.join(settings.sites)}"
            )
            out.emit("dry_run", settings=settings.model_dump(mode="json"))
            return
        set_run_folder(folder)
        silence_transformers()
        from marft_lab.federated.coordinator import federate as run_federation

        rounds = run_federation(
            settings,
            folder,
            resume=resume,
            on_round=lambda record: _report_round(out, record, settings.rounds),
        )
        norms = [norm for record in rounds for norm in record.norms.values()]
        learned = not norms or any(norms)
        out.emit("done", rounds=rounds[-1].round, learned=learned, federation=folder)
        name = next(iter(settings.sites))
        run = Path(settings.sites[name].folder or folder / "sites" / name) / "run"
        out.print(f"{rounds[-1].round} rounds. Each site has its run, that of {name}:  marft eval {run}")
        if not learned:
            out.print("nothing was learned: no site's policies changed; see the warnings of its run")


def _report_round(out: Output, record: RoundRecord, rounds: int) -> None:
    """Report a finished round, with one warning per skipped site."""
    from dataclasses import asdict

    out.emit("round", **asdict(record))
    changed = " ".join(f"{site} {norm:.3g}" for site, norm in record.norms.items())
    spent = "" if record.epsilon is None else f"  ε {record.epsilon:.3g}"
    before, after = record.apart
    if out.mode == "":
        out.print(
            f"round {record.round}/{rounds}  changes: {changed or 'not told'}  apart {before:.3g} → {after:.3g}{spent}"
        )
    for site, reason in record.left_out.items():
        out.print(Text(f"round {record.round}: went on without {site}, which {reason}", style="yellow"))
