"""Images and what is done to them, against Pillow: every pixel within one grey level."""

import json
import os
import subprocess

import numpy
import pytest
from PIL import Image, ImageEnhance, ImageFilter, ImageOps

DRIVER = os.environ.get("TRIREME_DATA_DRIVER", "build/core/bin/data_driver")
HOW = {"nearest": Image.Resampling.NEAREST, "bilinear": Image.Resampling.BILINEAR, "bicubic": Image.Resampling.BICUBIC}


def ask(questions):
    text = "".join(json.dumps(dict(q, op="image")) + "\n" for q in questions)
    done = subprocess.run([DRIVER], input=text, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    answers = [json.loads(line) for line in done.stdout.splitlines()]
    return [numpy.array(a["pixels"], dtype=int).reshape(a["shape"]) for a in answers]


def pixels(image):
    array = numpy.asarray(image, dtype=int)
    return array[:, :, None] if array.ndim == 2 else array


def photo(height, width, channels, seed=1):
    """Smooth shapes, edges and noise."""
    random = numpy.random.RandomState(seed)
    y, x = numpy.mgrid[0:height, 0:width]
    planes = [128 + 60 * numpy.sin(x / (3 + c)) + 50 * numpy.cos(y / (5 - c)) + 40 * (x > y) for c in range(channels)]
    array = numpy.clip(numpy.stack(planes, -1) + random.randint(-20, 20, (height, width, channels)), 0, 255).astype(numpy.uint8)
    return Image.fromarray(array[:, :, 0] if channels == 1 else array)


def resize(image, width, height, how, box=None):
    """Along rows first, as ours; which of the two ways Pillow takes in one call depends on its version."""
    left, top, right, bottom = box or (0, 0, *image.size)
    rows = image.resize((width, image.height), HOW[how], box=(left, 0, right, image.height))
    return rows.resize((width, height), HOW[how], box=(0, top, width, bottom))


def turned(image, turn):
    """The hue moved as torchvision moves it, through Pillow's own HSV."""
    if image.mode == "L":
        return image
    h, s, v = image.convert("HSV").split()
    moved = (numpy.asarray(h, dtype=int) + int(turn * 255)) % 256
    return Image.merge("HSV", (Image.fromarray(moved.astype(numpy.uint8)), s, v)).convert("RGB")


CASES = [
    (["resize", 20, 31, "bilinear"], lambda i: resize(i, 31, 20, "bilinear")),
    (["resize", 97, 120, "bilinear"], lambda i: resize(i, 120, 97, "bilinear")),
    (["resize", 17, 90, "bicubic"], lambda i: resize(i, 90, 17, "bicubic")),
    (["resize", 100, 23, "bicubic"], lambda i: resize(i, 23, 100, "bicubic")),
    (["resize", 33, 70, "nearest"], lambda i: resize(i, 70, 33, "nearest")),
    (["part", 24, 24, "bilinear", [5, 3, 36, 41]], lambda i: resize(i, 24, 24, "bilinear", (5, 3, 36, 41))),
    (["part", 24, 24, "bicubic", [0, 3, 36, 44]], lambda i: resize(i, 24, 24, "bicubic", (0, 3, 36, 44))),
    (["crop", -3, 5, 30, 60], lambda i: i.crop((5, -3, 65, 27))),
    (["flip", "horizontal"], ImageOps.mirror),
    (["flip", "vertical"], ImageOps.flip),
    (["channels", 1], lambda i: i.convert("L")),
    (["channels", 3], lambda i: i.convert("RGB")),
    (["solarize", 100], lambda i: ImageOps.solarize(i, 100)),
    *[(["blur", s], lambda i, s=s: i.filter(ImageFilter.GaussianBlur(s))) for s in (0.3, 0.9, 2.0, 4.7)],
    *[(["hue", t], lambda i, t=t: turned(i, t)) for t in (-0.5, -0.17, 0.0, 0.04, 0.31)],
    *[([n, f], lambda i, e=e, f=f: e(i).enhance(f)) for f in (0.4, 1.0, 1.7)
      for n, e in (("brightness", ImageEnhance.Brightness), ("contrast", ImageEnhance.Contrast), ("saturation", ImageEnhance.Color))],
]


@pytest.mark.parametrize("channels", [1, 3])
def test_operations(tmp_path, channels):
    image = photo(44, 53, channels)
    image.save(tmp_path / "i.png")
    answers = ask([{"path": str(tmp_path / "i.png"), "do": [step]} for step, _ in CASES])
    for (step, expected), answer in zip(CASES, answers):
        expected = pixels(expected(image))
        assert answer.shape == expected.shape, step
        assert abs(answer - expected).max() <= 1, (step, abs(answer - expected).max())


def test_files(tmp_path):
    colour, grey = photo(37, 50, 3), photo(37, 50, 1)
    cases = {
        "c.png": colour, "g.png": grey, "p.png": colour.quantize(16), "a.png": colour.copy(), "b.png": grey.point(lambda v: v > 100, "1"),
        "c.jpg": colour, "g.jpg": grey, "q.jpeg": colour,
    }
    cases["a.png"].putalpha(grey)
    for name, image in cases.items():
        image.save(tmp_path / name, **({"quality": 60, "progressive": True} if name == "q.jpeg" else {}))
    answers = ask([{"path": str(tmp_path / name), "do": []} for name in cases])
    for name, answer in zip(cases, answers):
        image = Image.open(tmp_path / name)
        expected = pixels(image.convert("L" if image.mode in ("1", "L") else "RGB"))
        assert abs(answer - expected).max() <= 1, name
