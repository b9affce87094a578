"""Models of scorers: each reads released weights from a file or a folder, and scores images. Imports torch.

A scorer's module in `verl_omni/reward_loop/rewards` calls `load_once` of `clip_model` with a class of this folder.
"""
