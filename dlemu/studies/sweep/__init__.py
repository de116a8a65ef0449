"""The same run with several values, which are given or searched for: `run` runs them, `page` shows them."""
