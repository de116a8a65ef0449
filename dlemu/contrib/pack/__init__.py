"""`dlemu pack`: processes read images, rescale them and write them into large files; reports rates and the bottleneck.

`job` plans a packing and runs it on each rank: `packer` packs one file after another, with images prepared by `recipe`,
and returns a row for each. `summary` computes rates and the bottleneck from the rows, `page` shows them.
"""
