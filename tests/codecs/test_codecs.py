"""WebP and JPEG without their headers: exact files again, the pictures Pillow gives, and clear errors."""

from __future__ import annotations

import io
import os
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from PIL import Image

from protocore.codecs.jpeg import JPEG, quantisation_table
from protocore.codecs.webp import PictureCodec, WebP
from protocore.errors import DataError, UserError
from protocore.memory.store import ExemplarStore

CODECS = pytest.mark.parametrize("codec", [WebP, JPEG])


def smooth(count: int, channels: int, height: int, width: int, seed: int = 0) -> np.ndarray:
    """Blobs of colour with a little noise, uint8 (N, C, H, W): compressible, as photographs are."""
    rng = np.random.default_rng(seed)
    y, x = np.mgrid[:height, :width] / 8
    phase = rng.uniform(0, 6, (count, channels, 4, 1, 1))
    waves = np.sin(phase[:, :, 0] + x * phase[:, :, 1] / 3) + np.cos(phase[:, :, 2] + y * phase[:, :, 3] / 3)
    return (127 + 50 * waves + rng.normal(0, 4, waves.shape)).clip(0, 255).astype(np.uint8)


def as_images(pictures: np.ndarray) -> torch.Tensor:
    return torch.from_numpy(pictures).float() / 255


def pillow(picture: np.ndarray) -> Image.Image:
    """(C, H, W) to Pillow's own."""
    return Image.fromarray(picture[0] if len(picture) == 1 else picture.transpose(1, 2, 0).copy())


def saved(picture: np.ndarray, **options: object) -> bytes:
    buffer = io.BytesIO()
    pillow(picture).save(buffer, **options)
    return buffer.getvalue()


def opened(file: bytes, channels: int) -> np.ndarray:
    read = np.asarray(Image.open(io.BytesIO(file)).convert("L" if channels == 1 else "RGB"))
    return read[None] if channels == 1 else read.transpose(2, 0, 1)


def psnr(a: torch.Tensor, b: torch.Tensor) -> float:
    return float(-10 * torch.log10((a - b).square().mean()))


@st.composite
def pictures(draw: st.DrawFn) -> tuple[np.ndarray, int]:
    """Any small shape and quality; blank, noisy, black and white, and smooth pictures."""
    shape = (draw(st.sampled_from([1, 3])), draw(st.integers(1, 70)), draw(st.integers(1, 70)))
    rng = np.random.default_rng(draw(st.integers(0, 2**32 - 1)))
    kind = draw(st.sampled_from(["blank", "noise", "binary", "smooth"]))
    if kind == "blank":
        picture = np.full(shape, rng.integers(256), np.uint8)
    elif kind == "smooth":
        picture = smooth(1, *shape, seed=int(rng.integers(1000)))[0]
    else:
        picture = rng.integers(0, 256, shape).astype(np.uint8)
        picture = picture // 128 * 255 if kind == "binary" else picture
    return picture.astype(np.uint8), draw(st.integers(1, 100))


@settings(max_examples=200, deadline=None)
@given(pictures())
def test_webp_file_comes_back_byte_for_byte(drawn: tuple[np.ndarray, int]) -> None:
    picture, quality = drawn
    codec = WebP(picture.shape, quality)
    (stored,) = codec.to_bytes(as_images(picture[None]))
    file = saved(picture, format="WEBP", quality=quality, method=6)
    assert codec.restore(stored) == file
    assert len(file) - 30 <= len(stored) <= len(file) - 28  # one number of 1 to 3 bytes in place of 31 bytes
    assert len(stored) <= codec.largest
    read = (codec.from_bytes([stored])[0] * 255).round().to(torch.uint8).numpy()
    assert np.array_equal(read, opened(file, len(picture)))


@settings(max_examples=100, deadline=None)
@given(pictures())
def test_jpeg_file_comes_back_byte_for_byte(drawn: tuple[np.ndarray, int]) -> None:
    picture, quality = drawn
    codec = JPEG(picture.shape, quality)
    (stored,) = codec.to_bytes(as_images(picture[None]))
    tables = [quantisation_table(quality, step) for step in (16.0, 11.2)][: 1 if len(picture) == 1 else 2]
    colour = {} if len(picture) == 1 else {"subsampling": "4:2:0"}
    files = [saved(picture, format="JPEG", qtables=tables, optimize=own, **colour) for own in (False, True)]
    assert codec.restore(stored) in files
    assert len(stored) <= codec.largest
    read = (codec.from_bytes([stored])[0] * 255).round().to(torch.uint8).numpy()
    assert np.array_equal(read, opened(codec.restore(stored), len(picture)))


def test_psnr_is_pillows_own() -> None:
    picture = smooth(1, 3, 32, 32)[0]
    file = saved(picture, format="WEBP", quality=10, method=6)
    codec = WebP((3, 32, 32))
    image = as_images(picture[None])
    decoded = codec.decode(codec.quantise(codec.encode(image)))
    expected = 10 * np.log10(255**2 / np.mean((opened(file, 3).astype(float) - picture) ** 2))
    assert psnr(image, decoded) == pytest.approx(expected, abs=1e-3)
    assert 24 < expected < 45


def test_small_jpeg_keeps_no_tables_and_large_ones_do_where_it_pays() -> None:
    small, large = smooth(1, 3, 32, 32), np.random.default_rng(0).integers(0, 256, (1, 3, 256, 256)).astype(np.uint8)
    (stored,) = JPEG((3, 32, 32)).to_bytes(as_images(small))
    assert stored[:2] != b"\xff\xc4"
    codec = JPEG((3, 256, 256))
    (stored,) = codec.to_bytes(as_images(large))
    assert stored[:2] == b"\xff\xc4"
    assert len(stored) < len(saved(large[0], format="JPEG", qtables=codec._qtables, subsampling="4:2:0")) - 623
    assert codec.from_bytes([stored]).shape == (1, 3, 256, 256)


def test_quantisation_table_by_hand() -> None:
    table = np.array(quantisation_table(50, 16.0)).reshape(8, 8)
    assert (table[0, 0], table[7, 7], table[0, 7], table[7, 0]) == (16, 48, 32, 32)
    assert quantisation_table(100, 16.0) == [1] * 64
    assert quantisation_table(25, 16.0)[0] == 32  # 5000 / 25 = 200 percent, as in libjpeg
    assert quantisation_table(75, 16.0)[0] == 8  # 200 - 2 * 75 = 50 percent
    assert max(quantisation_table(1, 16.0)) == 255  # baseline tables end there


@CODECS
def test_batch_keeps_order_and_range(codec: type[WebP] | type[JPEG]) -> None:
    images = as_images(smooth(5, 3, 16, 24))
    made = codec((3, 16, 24), 90)
    stored = made.to_bytes(made.encode(images))
    decoded = made.decode(made.from_bytes(stored))
    assert decoded.shape == images.shape
    assert decoded.dtype == torch.float32
    assert float(decoded.min()) >= 0
    assert float(decoded.max()) <= 1
    assert all(psnr(a, b) > 25 for a, b in zip(images, decoded, strict=True))
    assert psnr(images[0], decoded[1]) < 20
    assert made.from_bytes([]).shape == (0, 3, 16, 24)
    assert made.to_bytes(images[:0]) == []


@CODECS
def test_interface(codec: type[WebP] | type[JPEG]) -> None:
    made = codec((1, 28, 28))
    assert (made.differentiable, made.lossless, made.exemplar_bytes, made.shared_bytes) == (False, False, None, 0)
    assert made.latent_shape == (1, 28, 28)
    digests = {codec((1, 28, 28), 10).digest, codec((1, 28, 28), 11).digest, codec((1, 28, 29), 10).digest}
    assert len(digests | {codec((1, 28, 28), 10).digest}) == 3
    assert all(len(d) == 64 for d in digests)


@CODECS
def test_quantise_shows_what_is_stored_and_passes_gradients(codec: type[WebP] | type[JPEG]) -> None:
    made = codec((3, 16, 16))
    z = as_images(smooth(2, 3, 16, 16)).requires_grad_(True)
    quantised = made.quantise(z)
    assert torch.allclose(quantised, made.from_bytes(made.to_bytes(z)), atol=1e-6)
    (made.decode(quantised) * torch.arange(16.0)).sum().backward()
    assert z.grad is not None
    inside = (quantised > 0) & (quantised < 1)
    assert torch.equal(z.grad[inside], torch.arange(16.0).expand(2, 3, 16, 16)[inside])


@CODECS
def test_more_quality_takes_more_bytes_and_gives_more_decibels(codec: type[WebP] | type[JPEG]) -> None:
    images = as_images(smooth(8, 3, 32, 32))
    size, gain = [], []
    for quality in (5, 25, 60, 95):
        made = codec((3, 32, 32), quality)
        stored = made.to_bytes(images)
        size.append(sum(map(len, stored)))
        gain.append(psnr(images, made.from_bytes(stored)))
    assert size == sorted(size)
    assert gain == sorted(gain)


# -- hostile bytes ---------------------------------------------------------------------------------------------


@CODECS
def test_truncated_raises(codec: type[WebP] | type[JPEG]) -> None:
    made = codec((3, 32, 32))
    for data in made.to_bytes(as_images(smooth(6, 3, 32, 32))):
        whole = made.from_bytes([data])
        for cut in range(len(data)):
            try:
                read = made.from_bytes([data[:cut]])
            except DataError:
                continue
            # only where nothing but VP8's closing zeros went missing
            assert codec is WebP
            assert len(data) - cut == 2
            assert torch.equal(read, whole)


@CODECS
@settings(max_examples=200, deadline=None)
@given(data=st.binary(max_size=400))
def test_garbage_is_a_picture_or_a_clear_error(codec: type[WebP] | type[JPEG], data: bytes) -> None:
    made = codec((3, 20, 24))
    try:
        read = made.from_bytes([data])
    except DataError:
        return
    assert read.shape == (1, 3, 20, 24)
    assert float(read.min()) >= 0
    assert float(read.max()) <= 1


@CODECS
@settings(max_examples=100, deadline=None)
@given(at=st.integers(0, 10**6), value=st.integers(0, 255))
def test_a_changed_byte_is_a_picture_or_a_clear_error(
    codec: type[WebP] | type[JPEG], at: int, value: int
) -> None:
    made = codec((3, 20, 24))
    (data,) = made.to_bytes(as_images(smooth(1, 3, 20, 24)))
    at %= len(data)
    try:
        read = made.from_bytes([data[:at] + bytes([value]) + data[at + 1 :]])
    except DataError:
        return
    assert read.shape == (1, 3, 20, 24)


@CODECS
def test_oversized_raises_before_decoding(codec: type[WebP] | type[JPEG], monkeypatch: pytest.MonkeyPatch) -> None:
    made = codec((3, 32, 32))
    (data,) = made.to_bytes(as_images(smooth(1, 3, 32, 32)))

    def opened_anyway(*_: object) -> None:
        pytest.fail("decoded")

    monkeypatch.setattr(Image, "open", opened_anyway)
    with pytest.raises(DataError, match="more than such a picture can take"):
        made.from_bytes([data + bytes(10**6)])


@CODECS
def test_empty_and_second_exemplar(codec: type[WebP] | type[JPEG]) -> None:
    made = codec((3, 32, 32))
    (data,) = made.to_bytes(as_images(smooth(1, 3, 32, 32)))
    with pytest.raises(DataError, match="exemplar 0"):
        made.from_bytes([b""])
    with pytest.raises(DataError, match="exemplar 1"):
        made.from_bytes([data, data[:5]])


@CODECS
def test_file_of_another_size_is_not_decoded(
    codec: type[WebP] | type[JPEG], monkeypatch: pytest.MonkeyPatch
) -> None:
    made = codec((3, 32, 32))
    file = saved(smooth(1, 3, 64, 48)[0], format=made.name.upper())
    loaded = []
    for kind in (Image.Image, type(Image.open(io.BytesIO(file)))):
        monkeypatch.setattr(kind, "load", lambda *_: loaded.append(1))
    with pytest.raises(DataError, match="48 x 64"):
        made.pixels(file)
    assert not loaded


def test_other_formats_are_not_read() -> None:
    made = WebP((3, 32, 32))
    with pytest.raises(DataError, match="damaged"):
        made.pixels(saved(smooth(1, 3, 32, 32)[0], format="PNG"))


def test_jpeg_tables_that_lie_about_their_length() -> None:
    made = JPEG((3, 32, 32))
    for data in (b"\xff\xc4", b"\xff\xc4\x00\x00", b"\xff\xc4\xff\xff\x00", b"\xff\xc4\x00\x02"):
        with pytest.raises(DataError):
            made.from_bytes([data])


def test_jpeg_markers_within_the_scan_raise() -> None:
    made = JPEG((3, 32, 32))
    (data,) = made.to_bytes(as_images(smooth(1, 3, 32, 32)))
    frame = b"\xff\xc0\x00\x11\x08\xff\xff\xff\xff\x03\x01\x22\x00\x02\x11\x01\x03\x11\x01"  # 65535 x 65535
    with pytest.raises(DataError, match="marker"):
        made.from_bytes([data + frame])
    with pytest.raises(DataError, match="marker"):
        made.from_bytes([frame + data])


def test_webp_length_of_the_first_part() -> None:
    made = WebP((3, 32, 32))
    (data,) = made.to_bytes(as_images(smooth(1, 3, 32, 32)))
    with pytest.raises(DataError, match="whole file"):
        made.from_bytes([data[:-1]])  # the size of a RIFF chunk is even
    for lie in (b"\x00", b"\x7f", b"\xff\xff\x7f", b"\xff\xff\xff\xff"):
        with pytest.raises(DataError):
            made.from_bytes([lie + data[1 : 1 + 2 * 20 + 1]])


@CODECS
def test_what_a_codec_cannot_hold(codec: type[WebP] | type[JPEG]) -> None:
    for shape in ((2, 32, 32), (4, 32, 32), (3, 0, 32), (3, 32, 70000)):
        with pytest.raises(UserError, match="--codec"):
            codec(shape)
    for quality in (0, 101, -5):
        with pytest.raises(UserError, match=str(quality)):
            codec((3, 32, 32), quality)
    with pytest.raises(DataError, match="32"):
        codec((3, 32, 32)).to_bytes(torch.zeros(1, 3, 16, 16))


# -- in the memory ---------------------------------------------------------------------------------------------


@CODECS
def test_memory_of_files_comes_back(codec: type[WebP] | type[JPEG]) -> None:
    made: PictureCodec = codec((3, 32, 32))
    store = ExemplarStore(made)
    pictures = torch.from_numpy(smooth(6, 3, 32, 32))
    store.add(pictures, torch.arange(6))
    tensors = store.tensors()
    stored = made.to_bytes(pictures.float() / 255)
    assert tensors["exemplars/bytes"].numel() == sum(map(len, stored))
    again = ExemplarStore(made)
    again.load(tensors)
    assert torch.equal(again.images, store.images)
    assert torch.equal(again.labels, torch.arange(6))


@pytest.mark.skipif("PROTOCORE_DATA" not in os.environ, reason="PROTOCORE_DATA is not set: no real pictures")
def test_bytes_and_decibels_on_cifar100() -> None:
    file = Path(os.environ["PROTOCORE_DATA"]) / "cifar-100-binary" / "test.bin"
    if not file.exists():
        pytest.skip("no cifar-100-binary in PROTOCORE_DATA")
    rows = np.fromfile(file, np.uint8).reshape(-1, 3074)[::25, 2:].reshape(-1, 3, 32, 32)
    images = as_images(rows)
    for codec, size, gain in ((WebP, 132, 25.4), (JPEG, 140, 26.4)):
        made = codec((3, 32, 32))
        stored = made.to_bytes(images)
        each = [psnr(a, b) for a, b in zip(images, made.from_bytes(stored), strict=True)]
        assert np.mean([len(s) for s in stored]) < size
        assert np.mean(each) > gain
