"""KV-cache offload of language-model serving: blocks of attention keys and values, written once and read by prefix.

`load` makes the prompts, `plan` decides what each rank reads and writes, `job` runs a rank: its `replay` sends requests
to the threads of `mover`. `analyse` computes the results, `page` shows them. MLPerf Storage's load is in `official`.
"""
