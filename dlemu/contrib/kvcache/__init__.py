"""KV-cache offload of language-model serving: blocks of attention keys and values, written once and read by prefix.

`load` makes the prompts, `plan` deals them out to ranks with a cache each, `job` runs a rank: its `replay` sends them
to the threads of `mover`. `analyse` computes the results, `page` shows them. MLPerf Storage's load is in `official`.
"""
