"""Loading of tasks from local files in public benchmark layouts."""

from marft_envs.tool_use.loading.files import calls_of, check_records, without
from marft_envs.tool_use.loading.loaded import Format, Loaded, load
from marft_envs.tool_use.loading.tau2 import tau2_splits

__all__ = ["Format", "Loaded", "calls_of", "check_records", "load", "tau2_splits", "without"]
