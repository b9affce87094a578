"""One module per scorer."""
