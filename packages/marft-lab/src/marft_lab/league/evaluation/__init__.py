"""Who beats whom among a run's versions: matches with both sides swapped, ratings, and a page."""
