"""Metrics of joint trajectories: pure functions of one episode, one idea a file."""
