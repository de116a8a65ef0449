"""Two storages side by side: `sides` reads both, `compare_sides` has their differences, `page` and `figures` show them."""
