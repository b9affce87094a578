"""Model families, a folder each, and what their engine pipelines share."""
