"""Training: credit, objectives, schedules, the learner and the loop."""
