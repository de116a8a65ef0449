"""One file a document: `TITLE`, `ABOUT`, and `steps(question)`, the commands whose results hold its figures."""
