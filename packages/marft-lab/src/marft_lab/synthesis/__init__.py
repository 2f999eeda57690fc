"""Cold starts: a teacher plays, what it played is sifted, and what is left becomes rows that each role imitates."""
