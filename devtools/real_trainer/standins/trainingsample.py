"""Stands for the package of this name where it has no wheel: what the trainer calls of it for pictures, by Pillow and NumPy.

It lies on the trainer's path only in an environment that lacks the real one, and the record says so.
"""

import io
import random

import numpy as np
from PIL import Image

GRAY_TO_RGB = 8


def imdecode_py(data, flags=1):
    try:
        return np.asarray(Image.open(io.BytesIO(bytes(data))).convert("RGB"))
    except OSError:
        return None


def cvt_color_py(image, code):
    if code == GRAY_TO_RGB:
        return np.repeat(np.atleast_3d(image)[:, :, :1], 3, axis=2)
    return np.ascontiguousarray(image[:, :, ::-1])


def rgba_to_rgb_optimized(image):
    return np.ascontiguousarray(image[:, :, :3]), 0.0


def batch_resize_images(images, sizes):
    return [
        np.asarray(Image.fromarray(image).resize(size)) for image, size in zip(images, sizes, strict=True)
    ]


batch_resize_images_zero_copy = batch_resize_images


def _crop(image, left, top, width, height):
    return np.ascontiguousarray(image[top : top + height, left : left + width])


def batch_center_crop_images(images, sizes):
    return [
        _crop(image, (image.shape[1] - width) // 2, (image.shape[0] - height) // 2, width, height)
        for image, (width, height) in zip(images, sizes, strict=True)
    ]


def batch_random_crop_images(images, sizes):
    return [
        _crop(
            image,
            random.randint(0, image.shape[1] - width),
            random.randint(0, image.shape[0] - height),
            width,
            height,
        )
        for image, (width, height) in zip(images, sizes, strict=True)
    ]


def batch_calculate_luminance(images):
    return [float(image.mean()) for image in images]
