"""Measurements: `python -m benchmarks.NAME --json`; each module says what its figures mean."""
