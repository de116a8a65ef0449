"""From a result to what people look at: tables, lines and figures, on the terminal and on a page."""
