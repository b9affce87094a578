"""PURE: reasons of conditions, events and failures: their names, what each means, and what to do."""
