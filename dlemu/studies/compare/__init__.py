"""Two storages side by side: `sides` reads both, `compare_sides` compares them, `page` shows the comparison."""
