"""Worker processes: environment, tools and reward terms outside of the process that holds the models."""
