"""One figure, one file: the folder is the registry, `ORDER` its place on the page, `draw` the figure or None."""
