"""One module per vendor document, with these names.

`TITLE` and `ABOUT`; `steps(question)`: commands to run; `tables(opened)` and `figures(opened, canvas)`: what is made
of their results, each figure with the name of its file.
"""
