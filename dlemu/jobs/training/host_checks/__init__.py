"""What `dlemu doctor` checks for training alone: one file each, as in `dlemu.doctor`."""
