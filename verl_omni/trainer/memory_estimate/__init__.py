"""Memory estimate of a job, without its weights and without an accelerator: `drl fit`.

`config` is the trainer's settings, completed by `startup.fit_to_machine`, and `sample` the tensors of one sample.
"""
