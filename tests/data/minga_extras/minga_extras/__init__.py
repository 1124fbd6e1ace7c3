"""One plug-in for each seam of minga: a codec, a strategy, a recipe, an aggregator and an attack."""
