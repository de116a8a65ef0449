"""KV-cache offload of language-model serving: blocks of attention keys and values, written once and read by prefix.

The load is the list of prompts; loading is reading a prompt's blocks from storage. An object is a block on storage, a
shard the part of it that one accelerator stores; a copy (of the model) is the `kv.tp` accelerators that share one.

`load` makes the prompts, `plan` decides what each rank reads and writes, `job` runs a rank: its `replay` sends requests
to the threads of `mover`. `analyse` computes the results, `page` shows them. MLPerf Storage's kv_cache benchmark is in
`official`, `turns` and `published`. Imports no other kind of job, nor studies, the command line or mlperf.
"""
