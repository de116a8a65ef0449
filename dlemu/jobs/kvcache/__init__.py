"""KV-cache offload of language-model serving: blocks of attention keys and values, written once and read by prefix.

`kind` declares it; `job` runs a rank, `analyse` computes, `page` words and shows. Imports no other kind of job, nor
studies, the command line or mlperf; what it shares with other kinds lies below `dlemu.jobs`.
"""
