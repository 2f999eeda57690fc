"""The paper's experiment in small, its own settings at three entropies, the sensitivity study that it announces, and
teams of up to twelve.

    python benchmarks/paper.py                                  # all four; goes on where it stopped
    python benchmarks/paper.py --studies entropy --workers 2
    python benchmarks/paper.py --studies populations --tasks 200

Each study is a file in ``studies/``. Every run trains on the bundled model and is evaluated on held-out tasks. Writes
results/paper_<study>.json, .md and .svg, with the hours that the runs took.
"""

from __future__ import annotations

from types import ModuleType

from recording import measure, parser_of, save_plot, save_rows
from studies import entropy, experiment, populations, sensitivity

STUDIES: dict[str, ModuleType] = {
    "experiment": experiment, "entropy": entropy, "sensitivity": sensitivity, "populations": populations
}  # fmt: skip


def main() -> None:
    parser = parser_of(__doc__)
    parser.add_argument("--studies", default=",".join(STUDIES))
    arguments = parser.parse_args()
    for name in arguments.studies.split(","):
        study = STUDIES[name]
        jobs = study.jobs(arguments.tasks, str(arguments.output / "paper" / name))
        rows = measure(jobs, arguments.workers, study.describe)
        save_rows(arguments.results, f"paper_{name}", rows, study.table(rows))
        save_plot(arguments.results, f"paper_{name}", study.plot(rows))


if __name__ == "__main__":
    main()
