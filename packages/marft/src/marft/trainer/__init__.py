"""Training: credit assignment, objectives, schedules, the learner and the loop."""
