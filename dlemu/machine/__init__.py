"""The host: its hardware, software and limits, its clock, and the kernel's accounting of threads."""
