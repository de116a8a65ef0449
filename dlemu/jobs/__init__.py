"""What can be measured: a folder is one kind of job and holds all of it.

The folder is the registry (`dlemu.results.kinds`). Kinds never import each other: what two of them share lies below.
May import doctor, report, runner and what is below them.
"""
