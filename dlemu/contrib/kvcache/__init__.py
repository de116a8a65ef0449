"""KV-cache offload of language-model serving: blocks of attention keys and values, written once and read by prefix.

`load` makes the prompts, `plan` assigns them to ranks with a cache each, `job` runs a rank: its `replay` submits reads
and writes to the threads of `mover`. `analyse` computes the results, `page` shows them. `official` is MLPerf's load.
"""
