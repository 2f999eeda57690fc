"""Guards: pure functions of the metric history that detect problems hidden from the reward."""
