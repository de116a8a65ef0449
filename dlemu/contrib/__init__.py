"""Optional parts of dlemu: each folder holds all of one, with its commands, tests and page, and may be deleted.

They are found by the entry points of the installed distribution, as anybody's plug-ins are; the core imports none, and
none imports another. They import the public modules: `dlemu.extend`, `dlemu.api`, results, report and config.
"""
