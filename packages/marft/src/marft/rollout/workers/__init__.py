"""Worker processes for environments, tools and reward terms, outside the process with the models."""
