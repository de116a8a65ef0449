"""What the figures of documents are drawn with; the figures themselves stand in their documents."""
