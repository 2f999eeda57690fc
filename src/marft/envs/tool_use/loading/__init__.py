"""Tasks in the layouts of public benchmarks, from files of one's own."""

from marft.envs.tool_use.loading.loaded import Format, Loaded, load

__all__ = ["Format", "Loaded", "load"]
