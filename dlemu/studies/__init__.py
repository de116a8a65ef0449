"""Studies answer questions about jobs, most by a list of child runs, which can be resumed after an interruption."""
