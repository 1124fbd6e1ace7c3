"""What is run on the source itself: `python -m tools.size`, `python -m tools.words`, `python -m tools.trace`."""
