"""`dlemu pack`: processes read images, rescale them and write them into large files; reports rates and the bottleneck.

`job` plans a packing and runs it on each rank, whose `packer` packs one file after another as `recipe` says, and logs a
row for each (`rows`). `summary` computes the rates and what limited them, `page` shows them.
"""
