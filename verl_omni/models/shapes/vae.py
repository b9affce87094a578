"""VAE with closed-form weights: encodes with a 2 x 2 mean, decodes with bilinear upsampling by 2.

Two identities make diffusers' nonlinear blocks linear: SiLU(x) - SiLU(-x) = x turns a pair of channels (x, -x)
into x again, and a large constant pair (k, -k) in a group makes the group norm divide by a constant.
"""

import torch
from diffusers import AutoencoderKL
from torch import nn

from verl_omni.models.shapes.scenes import BACKGROUND

CONSTANT = 1024.0
CHANNELS = 12  # +x, -x, +k, -k for each colour


@torch.no_grad()
def linear_vae() -> AutoencoderKL:
    """AutoencoderKL, 3 latent channels at half the size; the latent 0 is the background."""
    vae = AutoencoderKL(
        in_channels=3,
        out_channels=3,
        latent_channels=3,
        down_block_types=("DownEncoderBlock2D",) * 2,
        up_block_types=("UpDecoderBlock2D",) * 2,
        block_out_channels=(CHANNELS, CHANNELS),
        layers_per_block=1,
        norm_num_groups=3,
        mid_block_add_attention=False,
        sample_size=64,
        use_quant_conv=False,
        use_post_quant_conv=False,
        scaling_factor=1.0,
        shift_factor=0.0,
    )
    for parameter in vae.parameters():
        parameter.zero_()
    for half in (vae.encoder, vae.decoder):
        _spread(half.conv_in)
        _gather(half.conv_norm_out, half.conv_out)
    vae.encoder.conv_out.bias[3:] = -30  # log-variance: effectively deterministic
    background = torch.tensor(BACKGROUND * 2 - 1, dtype=torch.float32)
    for color in range(3):
        vae.encoder.conv_in.bias[4 * color] = -background[color]
        vae.encoder.conv_in.bias[4 * color + 1] = background[color]
    vae.decoder.conv_out.bias.copy_(background)
    _resize(vae.encoder.down_blocks[0].downsamplers[0].conv, vae.decoder.up_blocks[0].upsamplers[0].conv)
    return vae.eval()


def _spread(conv: nn.Conv2d) -> None:
    for color in range(3):
        conv.weight[4 * color, color, 1, 1] = 1
        conv.weight[4 * color + 1, color, 1, 1] = -1
        conv.bias[4 * color + 2] = CONSTANT
        conv.bias[4 * color + 3] = -CONSTANT


def _gather(norm: nn.GroupNorm, conv: nn.Conv2d) -> None:
    norm.weight.fill_(CONSTANT / 2**0.5)
    for color in range(3):
        norm.weight[4 * color + 2 : 4 * color + 4] = 0
        conv.weight[color, 4 * color, 1, 1] = 1
        conv.weight[color, 4 * color + 1, 1, 1] = -1


def _resize(down: nn.Conv2d, up: nn.Conv2d) -> None:
    kernel = torch.tensor([1.0, 2.0, 1.0]) / 4  # bilinear, after nearest-neighbour upsampling
    for channel in range(CHANNELS):
        if channel % 4 < 2:
            down.weight[channel, channel, :2, :2] = 0.25
            up.weight[channel, channel] = torch.outer(kernel, kernel)
        else:
            constant = CONSTANT if channel % 4 == 2 else -CONSTANT
            down.bias[channel] = up.bias[channel] = constant
