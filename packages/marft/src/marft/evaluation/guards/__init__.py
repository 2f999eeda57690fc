"""What goes wrong with a run that its reward does not show: each guard is a pure function of the metrics so far."""
