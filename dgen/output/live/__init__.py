"""The canvas in a terminal: how a draft is laid out in cells, and how a region of the screen shows it."""
