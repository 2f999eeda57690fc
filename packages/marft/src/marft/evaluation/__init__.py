"""Team evaluation: batch metrics, held-out evaluation, run comparison and the report."""
