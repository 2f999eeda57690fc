"""Where tools come from: functions, MCP servers, the sandbox, skills."""
