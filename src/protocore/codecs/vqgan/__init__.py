"""Our own small VQGAN: a convolutional encoder, residual vector quantisation, a convolutional decoder.

Both halves are a linear patch transform (its inverse in the decoder) plus a convolutional correction that
starts at zero, so that training begins at principal components and k-means. The quantiser adds up one code of
each stage's codebook (residual quantisation); the first k stages are a coarser code of the same picture, so
that the number of stages is a choice at run time. A stage's codes lie in a plane of `code_rank` dimensions of
its own: most of what a stage can still correct lies there, and the codebooks stay small.
"""

from protocore.codecs.vqgan.codec import VQGANCodec, load
from protocore.codecs.vqgan.config import VQGANConfig
from protocore.codecs.vqgan.files import load_model, save, shipped, weights_digest
from protocore.codecs.vqgan.network import VQGAN
from protocore.codecs.vqgan.quantiser import Quantiser, search

__all__ = [
    "VQGAN",
    "Quantiser",
    "VQGANCodec",
    "VQGANConfig",
    "load",
    "load_model",
    "save",
    "search",
    "shipped",
    "weights_digest",
]
