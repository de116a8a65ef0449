"""The figures of a training run, one per file: `ORDER` is its position on the page, `draw` returns it or None."""
