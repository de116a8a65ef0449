"""What the benchmarks and the validation share: one main, one runner of dlemu, one form of evidence."""
