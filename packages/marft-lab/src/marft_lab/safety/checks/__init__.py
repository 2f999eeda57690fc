"""Safety checks for forbidden behavior and for attack goals, one class per file."""
