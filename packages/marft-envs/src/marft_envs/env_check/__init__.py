"""Environment checks: load the tasks, play episodes with several players, and judge the results."""
