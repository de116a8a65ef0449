"""Two storages side by side.

`sides` reads what both measured, `compare_sides` puts them side by side, `page` shows it. Imports no kind of job:
it knows them by what their kind says of itself.
"""
