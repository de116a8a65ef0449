"""KV-cache offload: its load, its plan, its replay against models, its result."""
