"""The same run over several values: `run` runs the points, `bracket` searches for the largest value that passes."""
