"""g and its inverse: everything that turns pictures into bytes and back."""

from protocore.codecs.base import Codec
from protocore.codecs.names import codec_named, codec_told, is_told, way_to
from protocore.codecs.table import CODECS, CodecInfo, Wish, register

__all__ = ["CODECS", "Codec", "CodecInfo", "Wish", "codec_named", "codec_told", "is_told", "register", "way_to"]
