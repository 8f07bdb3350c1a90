"""The catalog of images: one for each minor version of Python that workers can run."""

from __future__ import annotations

CATALOG_PREFIX = "nodus/"
PYTHON_IMAGE = "nodus/python"
PYTHONS = ("3.10", "3.11", "3.12", "3.13")
CATALOG_ADVICE = f"Use one of {', '.join(f'{PYTHON_IMAGE}:{version}' for version in PYTHONS)}."


def python_image(version: str) -> str:
    """The catalog image for a minor version of Python."""
    return f"{PYTHON_IMAGE}:{version}"


def is_offered(image: str) -> bool:
    """Whether the catalog has the image; one without a tag means the version that the caller names."""
    return image == PYTHON_IMAGE or image in {python_image(version) for version in PYTHONS}


def python_of(image: str) -> str | None:
    """The minor version of Python in an image, as far as its name tells."""
    name, _, tag = image.partition(":")
    return tag if name == PYTHON_IMAGE and tag in PYTHONS else None
