"""`dlemu pack`: processes read images, rescale them and write them into large files; reports rates and the bottleneck.

`api` packs at each point of a sweep and saves pack.json; each point is a `process`, which forks the processes that pack
(`worker`). `analyse` computes the figures and what limited them.
"""
