"""Parts of an answer in several hands, and messages that cost: nobody can answer alone."""
