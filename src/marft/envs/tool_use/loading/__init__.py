"""Tasks in the layouts of public benchmarks, from files of one's own."""

from marft.envs.tool_use.loading.files import check_records
from marft.envs.tool_use.loading.loaded import Format, Loaded, load

__all__ = ["Format", "Loaded", "check_records", "load"]
