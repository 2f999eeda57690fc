"""Tasks in the layouts of public benchmarks, from files of one's own."""

from marft_envs.tool_use.loading.files import calls_of, check_records, without
from marft_envs.tool_use.loading.loaded import Format, Loaded, load
from marft_envs.tool_use.loading.tau2 import tau2_splits

__all__ = ["Format", "Loaded", "calls_of", "check_records", "load", "tau2_splits", "without"]
