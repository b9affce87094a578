"""Results outside the run folder: adapter, trained model, model card, stores and the hub."""
