"""Tests and what they share; a regular package, so that one of the same name in the environment does not hide it."""
