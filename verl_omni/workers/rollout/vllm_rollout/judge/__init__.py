"""Servers of a judge: a vision-language model of `reward.reward_model`, in vLLM's own engine."""
