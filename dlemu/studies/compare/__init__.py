"""Two storages beside each other."""
