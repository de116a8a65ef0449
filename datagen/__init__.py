"""datagen knows bytes: what a dataset holds, where each sample lies, how to make, check and read it.

It knows nothing of time, accelerators, ranks or frameworks; `dlemu` builds on it, never the other way.
"""
