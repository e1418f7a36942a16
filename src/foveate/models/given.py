"""What stands in the prompt for embeddings that a client computed itself: as many picture tokens as there are rows, framed as the family
does it. Only for families in which rows alone, with the grid where there is one, tell all of it: in others the prompt also says how the
picture was cut.
"""

from __future__ import annotations

from typing import Any

from foveate.core.errors import EmbeddingsInvalid, EmbeddingsRefused
from foveate.models.families import Family

GRID = "image_grid_thw"


class GivenPictures:
    """Of one model."""

    def __init__(self, family: Family, processor: Any, config: Any, picture_token: str) -> None:
        self._title = family.title
        self._accepted = family.takes_given
        self._token = picture_token
        self._merge: int | None = config.vision_config.spatial_merge_size if GRID in family.inputs else None
        # InternVL's processor frames the tokens itself; with others the template does.
        self._before = getattr(processor, "start_image_token", None) or "" if family.name == "internvl" else ""
        self._after = getattr(processor, "end_image_token", None) or "" if family.name == "internvl" else ""

    def accepted(self) -> None:
        """Raise EmbeddingsRefused where the family takes none."""
        if not self._accepted:
            raise EmbeddingsRefused(f"{self._title} models take pictures, not embeddings of them.")

    def picture(self, rows: int, grid: tuple[int, ...]) -> tuple[str, dict[str, list[int]]]:
        """Return the replacement and the meta of :class:`foveate.core.media.PreparedImage`. Raises EmbeddingsInvalid."""
        self.accepted()
        meta: dict[str, list[int]] = {}
        if self._merge is None:
            if grid:
                raise EmbeddingsInvalid(f"{self._title} models have no image_grid_thw.")
        else:
            if not grid:
                raise EmbeddingsInvalid(f"{self._title} models need image_grid_thw beside image_embeds.")
            fits = (
                len(grid) == 3
                and grid[0] == 1
                and all(side > 0 and side % self._merge == 0 for side in grid[1:])
                and grid[1] * grid[2] == rows * self._merge**2
            )
            if not fits:
                raise EmbeddingsInvalid(
                    f"image_grid_thw {list(grid)} is not that of {rows} rows: it is [1, height, width] in patches, and a row stands for "
                    f"{self._merge}x{self._merge} of them."
                )
            meta[GRID] = list(grid)
        return f"{self._before}{self._token * rows}{self._after}", meta
