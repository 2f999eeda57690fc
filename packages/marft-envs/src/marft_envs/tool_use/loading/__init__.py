"""Loading of tasks from local files in public benchmark layouts."""

from marft_envs.tool_use.loading.files import check_records, drop_overlapping, reference_calls
from marft_envs.tool_use.loading.loader import Benchmark, Format, load_benchmark
from marft_envs.tool_use.loading.tau2 import read_tau2_splits

__all__ = [
    "Benchmark",
    "Format",
    "check_records",
    "drop_overlapping",
    "load_benchmark",
    "read_tau2_splits",
    "reference_calls",
]
