"""Episodes as spans of OpenTelemetry, by its GenAI conventions: to a receiver or a file, later or live."""
