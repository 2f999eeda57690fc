"""Run the paper's studies on a small scale: the experiment, three entropies, sensitivity, and teams of up to twelve.

    python benchmarks/paper.py                                  # all four studies; resumes
    python benchmarks/paper.py --studies entropy --workers 2
    python benchmarks/paper.py --studies populations --tasks 200

Each study is a file in ``studies/``. The paper announces the sensitivity study. Every run trains on the bundled model
and is evaluated on held-out tasks. Writes results/paper_<study>.json, .md and .svg, with the hours of the runs.
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
