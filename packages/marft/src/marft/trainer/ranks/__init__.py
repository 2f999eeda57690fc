"""Several processes that learn together: how they meet, what each does, and the run's side of them."""
