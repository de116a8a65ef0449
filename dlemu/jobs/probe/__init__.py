"""`dlemu probe`: what a storage can deliver (MB/s, IOPS, latency), as fio would measure it, without any training."""
