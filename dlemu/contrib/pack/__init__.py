"""`dlemu pack`: processes read images, rescale them and write them into large files; reports rates and the bottleneck.

`run` packs at each point of a sweep and saves pack.json; each point is a `process`, which forks the processes that pack
(`worker`). `analyse` computes the figures, `wording` and `page` show them. Formats and recipes are in
`image_list`, `packed_set` and `recipe`. Imports no other kind of job, nor studies, the command line or mlperf.
"""
