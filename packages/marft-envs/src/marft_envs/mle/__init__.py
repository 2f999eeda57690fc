"""Machine-learning competitions for program writers, in MLE-bench format: files, a metric, a leaderboard, medals."""
