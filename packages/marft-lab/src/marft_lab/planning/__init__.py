"""What a run will need and how long a step takes, by arithmetic: nothing is loaded, and torch is not imported."""
