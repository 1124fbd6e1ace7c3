"""Keys, links and signed run specs."""
