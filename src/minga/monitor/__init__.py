"""Status, history and plots of a run, as one peer sees it."""
