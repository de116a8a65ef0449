"""The same run over several values: `run` runs them, given or searched for; `page` shows them."""
