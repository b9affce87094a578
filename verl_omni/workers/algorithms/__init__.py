"""Training algorithms: settings, training batch and objective of each; `registry.py` lists them."""
