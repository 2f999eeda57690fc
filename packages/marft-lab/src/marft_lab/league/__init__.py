"""League: training against a pool of past versions, and matches between versions."""
