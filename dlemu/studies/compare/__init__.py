"""Two storages beside each other.

`sides` reads what both measured, `compare_sides` puts them beside each other, `page` shows it. Imports no kind of job:
it knows them by what their kind says of itself.
"""
