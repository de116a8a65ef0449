"""What the host is and does: its hardware and limits, its clock, and the accounts that the kernel keeps."""
