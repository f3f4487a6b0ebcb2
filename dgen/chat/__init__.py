"""A conversation of several turns, and the file that keeps it."""
