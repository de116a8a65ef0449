"""What is known of the host: its hardware and limits, its clock, and what the kernel counts."""
