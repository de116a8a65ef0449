"""Who reads what: the samples of every batch, by pure arithmetic, the same in every process."""
