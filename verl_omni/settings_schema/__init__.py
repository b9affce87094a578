"""Schema of the trainer's settings: names, types, ranges, supported values, and the job's fields that set them.

Trainer, operator and the documents read it; it needs no library but PyYAML. Defaults and their comments are in
verl_omni/trainer/config. What modules of users register is known to the trainer only.
"""
