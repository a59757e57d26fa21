"""Text for people: reports, plans, merges, gates and errors."""
