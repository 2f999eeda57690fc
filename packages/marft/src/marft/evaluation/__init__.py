"""What episodes say about a team: metrics of a batch, held-out evaluation, comparison of runs, the report."""
