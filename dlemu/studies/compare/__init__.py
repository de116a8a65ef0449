"""Two storages side by side.

`sides` reads the results of both, `compare_sides` computes the differences, `page` shows them. Imports no kind of job:
all that it needs of them is declared in their `Kind`.
"""
