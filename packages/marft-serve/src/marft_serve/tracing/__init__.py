"""Export of episodes as OpenTelemetry spans with GenAI conventions.

The export runs live during training or later from recordings, and sends to an endpoint or a file.
"""
