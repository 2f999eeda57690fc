"""Tool sources: functions, MCP servers, the sandbox, skills."""
