"""What the figures of documents are drawn with; the figures themselves are in their documents."""
