"""Models, data and losses that runs can name."""
