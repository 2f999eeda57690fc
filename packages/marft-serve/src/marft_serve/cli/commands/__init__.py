"""Arguments and options for the commands."""
