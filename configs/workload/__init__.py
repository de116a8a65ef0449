"""One workload a file."""
