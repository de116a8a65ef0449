"""What the documents' figures are drawn with; the figures themselves are in the documents' modules."""
