"""Where the metrics of a run go beside its own log: one file a program that shows them."""
