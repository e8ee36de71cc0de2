"""Videos of games, written by OpenCV, which the extra `atari` brings along: nothing else has to be installed."""

from __future__ import annotations

from pathlib import Path
from types import TracebackType
from typing import Any

import numpy as np

CODECS = {".mp4": "vp09", ".webm": "vp09", ".avi": "MJPG"}
"""By the file's name. VP9 is free, in OpenCV's packages, and played by browsers."""
SMALLEST_HEIGHT = 240
"""Of a picture, in pixels: smaller ones are drawn several times as large."""


class VideoError(ValueError):
    """No video can be written to the file."""


class VideoFile:
    """A file that pictures are appended to; a context manager.

    Raises VideoError for a name of another kind, a folder that is not there, and where OpenCV is missing.
    """

    def __init__(self, path: Path) -> None:
        if path.suffix not in CODECS:
            raise VideoError(f"--video: expected a file named {', '.join(f'*{each}' for each in CODECS)}, got {path}")
        if not path.absolute().parent.is_dir():
            raise VideoError(f"--video: expected an existing folder, got {path.absolute().parent}")
        try:
            import cv2
        except ImportError as error:
            raise VideoError(
                f"--video needs OpenCV ({error}): pip install opencv-python-headless, or 'replay-server[atari]'"
            ) from error
        self.path, self.pictures = path, 0
        self._cv2: Any = cv2
        self._file: Any = None
        self._times = 1

    def __enter__(self) -> VideoFile:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        if self._file is not None:
            self._file.release()
            if kind is not None:
                self.path.unlink(missing_ok=True)

    def add(self, picture: np.ndarray, pictures_per_s: float) -> None:
        """Appends a picture, uint8 (height, width, 3), red first; all of them have the first one's size."""
        cv2 = self._cv2
        height, width = picture.shape[:2]
        if self._file is None:
            self._times = max(1, -(-SMALLEST_HEIGHT // height))
            size = (width * self._times, height * self._times)
            codec = cv2.VideoWriter.fourcc(*CODECS[self.path.suffix])
            self._file = cv2.VideoWriter(str(self.path), codec, pictures_per_s, size)
            if not self._file.isOpened():
                raise VideoError(f"--video: OpenCV cannot write {self.path}; another kind may do: {', '.join(CODECS)}")
        larger = picture.repeat(self._times, axis=0).repeat(self._times, axis=1)
        self._file.write(cv2.cvtColor(larger, cv2.COLOR_RGB2BGR))
        self.pictures += 1
