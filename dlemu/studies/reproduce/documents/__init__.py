"""One file a document.

`TITLE`, `ABOUT`, `steps(question)`: the commands whose results hold its figures; `tables(opened)` and
`figures(opened, canvas)`: what is made of them, each figure with a name for its file.
"""
