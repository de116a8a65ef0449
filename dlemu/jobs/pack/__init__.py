"""Packing: processes that read, rescale and write at the same time, watched and judged.

`kind` declares it; `run` leads from the question to pack.json, `wording` and `page` show. What is packed, and how, is
`datagen.packing`. Imports no other kind of job, nor studies, the command line or mlperf.
"""
