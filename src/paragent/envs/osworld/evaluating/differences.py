"""Metrics and getters whose results can differ from OSWorld's, with the reason; `paragent osworld check` shows them."""

from __future__ import annotations

__all__ = ["DIFFERENCES"]

DIFFERENCES: dict[str, str] = {
    "compare_archive": "text of PDF files in archives is extracted by pypdf, not PyMuPDF",
    "compare_audios": "sounds are decoded and resampled by ffmpeg, not librosa (scores of different sounds move by about 0.001)",
    "compare_pdfs": "text of PDF files is extracted by pypdf, not PyMuPDF; the likeness of different texts moves by up to 0.06",
    "compare_videos": "films are decoded by ffmpeg, not OpenCV",
}
"""By the name of a metric or a getter, which are distinct. What differs for every evaluator is in docs/osworld_evaluators.md."""
