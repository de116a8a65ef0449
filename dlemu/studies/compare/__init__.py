"""Two storages side by side: `sides` reads both, `compare_sides` computes, `page` and `figures` show both."""
