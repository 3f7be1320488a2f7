"""Sounds and films, made by this test and by ffmpeg; numbers are those of the libraries that published scores used."""

from __future__ import annotations

import asyncio
import math
import struct
import subprocess
import wave
from collections.abc import Callable
from pathlib import Path
from typing import Any, cast

import numpy as np
import pytest

from paragent.osworld.context import AttemptContext
from paragent.osworld.controller import Controller
from paragent.osworld.coverage import missing
from paragent.osworld.evaluators import evaluate
from paragent.osworld.evaluators.metrics.media import warp

Score = Callable[..., float]
RATE = 22_050


def curve(length: int, step: int) -> Any:
    return np.array([[math.sin(i / step) + 1.5, math.cos(i / (step + 2)) + 1.2, 1.0] for i in range(length)])


@pytest.mark.parametrize(
    ("first", "second", "distance", "length"),
    [
        (40, 33, 1.4759669173920513, 46),
        (101, 77, 3.941798265407285, 120),
        (2, 5, 0.020262655660814755, 5),
        (64, 64, 1.2446208695122554, 78),
    ],
)
def test_sequences_are_aligned_as_by_fastdtw(first: int, second: int, distance: float, length: int) -> None:
    found = warp(curve(first, 3), curve(second, 4))
    assert found[0] == pytest.approx(distance, abs=1e-9)
    assert found[1] == length


def tone(path: Path, pitch: float, seconds: float, channels: int = 1) -> str:
    samples = [
        int(9000 * math.sin(2 * math.pi * pitch * t / RATE) * (1 + math.sin(t / 3000)) / 2)
        for t in range(int(RATE * seconds))
    ]
    with wave.open(str(path), "wb") as file:
        file.setnchannels(channels)
        file.setsampwidth(2)
        file.setframerate(RATE)
        file.writeframes(b"".join(struct.pack("<h", sample) * channels for sample in samples))
    return str(path)


@pytest.mark.slow
def test_sounds_are_compared_as_by_librosa(score: Score, tmp_path: Path, write: Callable[..., str]) -> None:
    one, other = tone(tmp_path / "one.wav", 440, 1.5), tone(tmp_path / "other.wav", 523, 1.2)
    assert score("compare_audios", one, other) == pytest.approx(0.5751180695267951, abs=1e-5)
    assert score("compare_audios", one, tone(tmp_path / "same.wav", 440, 1.5)) == 1
    assert score("compare_audios", one, tone(tmp_path / "stereo.wav", 440, 1.5, channels=2)) == pytest.approx(1)
    assert score("compare_audios", one, write("bad.wav", b"RIFF no sound")) == 0
    assert score("compare_audios", write("bad.mp3", b"x"), write("worse.mp3", b"y")) == 1  # as in OSWorld
    assert score("compare_audios", None, one) == 0


def recording(path: Path, pattern: str, seconds: float) -> str:
    source = f"{pattern}=size=96x64:rate=10:duration={seconds}"
    command = [
        "ffmpeg",
        "-v",
        "error",
        "-nostdin",
        "-y",
        "-f",
        "lavfi",
        "-i",
        source,
        "-c:v",
        "mjpeg",
        "-f",
        "avi",
        str(path),
    ]
    subprocess.run(command, check=True, timeout=60)
    return str(path)


@pytest.mark.slow
def test_videos(score: Score, tmp_path: Path, write: Callable[..., str]) -> None:
    gold = recording(tmp_path / "gold.avi", "testsrc", 2)
    assert score("compare_videos", recording(tmp_path / "same.avi", "testsrc", 2), gold) == 1
    assert score("compare_videos", recording(tmp_path / "short.avi", "testsrc", 1), gold) == 0
    assert score("compare_videos", recording(tmp_path / "short.avi", "testsrc", 1), gold, max_frames_to_check=5) == 1
    assert score("compare_videos", recording(tmp_path / "other.avi", "smptebars", 2), gold) == 0
    assert score("compare_videos", write("bad.avi", b"no recording"), gold) == 0
    assert score("compare_videos", None, gold) == 0


@pytest.mark.slow
def test_ffmpeg_works_within_the_limits_of_a_child_process(tmp_path: Path) -> None:
    recording(tmp_path / "recording.avi", "testsrc", 1)
    (tmp_path / "copy.avi").write_bytes((tmp_path / "recording.avi").read_bytes())
    tone(tmp_path / "one.wav", 440, 1)
    tone(tmp_path / "two.wav", 441, 1)
    sides = [{"type": "cache_file", "path": name} for name in ("recording.avi", "copy.avi", "one.wav", "two.wav")]
    attempt = AttemptContext(cast("Controller", None), tmp_path)
    evaluator = {"func": ["compare_videos", "compare_audios"], "result": sides[::2], "expected": sides[1::2]}
    assert 0.9 < asyncio.run(asyncio.wait_for(evaluate(evaluator, attempt), 110)) < 1


def test_a_playlist_does_not_reach_the_network(score: Score, tmp_path: Path, write: Callable[..., str]) -> None:
    gold = recording(tmp_path / "gold.avi", "testsrc", 1)
    playlist = write("list.m3u8", "#EXTM3U\n#EXTINF:1,\nhttp://127.0.0.1:9/recording.ts\n#EXT-X-ENDLIST\n")
    assert score("compare_videos", playlist, gold) == 0


@pytest.mark.slow
@pytest.mark.parametrize(
    "playlist",
    [
        "#EXTM3U\n#EXT-X-TARGETDURATION:1\n#EXTINF:1,\n{path}\n#EXT-X-ENDLIST\n",
        "#EXTM3U\n#EXT-X-TARGETDURATION:1\n#EXTINF:1,\nfile:{path}\n#EXT-X-ENDLIST\n",
        "ffconcat version 1.0\nfile {path}\n",
        "ffconcat version 1.0\nfile '{name}'\n",
    ],
)
def test_a_playlist_does_not_reach_other_files(
    score: Score, tmp_path: Path, write: Callable[..., str], playlist: str
) -> None:
    path = tmp_path / "gold.ts"
    recording(tmp_path / "gold.avi", "testsrc", 1)
    command = ["ffmpeg", "-v", "error", "-nostdin", "-i", str(tmp_path / "gold.avi"), "-c:v", "mpeg2video", str(path)]
    subprocess.run(command, check=True, timeout=60)
    assert score("compare_videos", str(path), str(path)) == 1
    for name in ("list.m3u8", "list.mp4", "list.ffconcat"):
        assert score("compare_videos", write(name, playlist.format(path=path, name=path.name)), str(path)) == 0


def frame(name: str, text: bytes, version: int) -> bytes:
    size = len(text)
    packed = (
        bytes([size >> 21 & 127, size >> 14 & 127, size >> 7 & 127, size & 127])
        if version == 4
        else struct.pack(">I", size)
    )
    return name.encode() + packed + b"\0\0" + text


def tagged(version: int, *frames: bytes) -> bytes:
    body = b"".join(frames) + b"\0" * 20
    size = bytes([len(body) >> 21 & 127, len(body) >> 14 & 127, len(body) >> 7 & 127, len(body) & 127])
    return b"ID3" + bytes([version, 0, 0]) + size + body + b"\xff\xfb sound"


@pytest.mark.parametrize("version", [3, 4])
def test_tags_of_mp3_files(score: Score, write: Callable[..., str], version: int) -> None:
    long = "Missing You" * 20
    frames = [
        frame("TIT2", b"\x01" + long.encode("utf-16"), version),
        frame("TPE1", b"\x03" + "Cheng Xiang\0Ä".encode(), version),
        frame("APIC", b"\0picture", version),
        frame("TALB", b"\0Old", version),
    ]
    path = write("song.mp3", tagged(version, *frames))

    def tag(**wanted: str) -> float:
        return score("check_mp3_meta", path, {name: {"method": "eq", "ref": ref} for name, ref in wanted.items()})

    assert tag(title=long, artist="Cheng Xiang,Ä", album="Old", genre="") == 1
    assert tag(title="Other") == 0
    with pytest.raises(ValueError, match="no tags"):
        score("check_mp3_meta", write("plain.mp3", b"\xff\xfb sound"), {"title": {"method": "eq", "ref": "x"}})
    assert tag(mood="") == 1


def test_tags_of_old_mp3_files(score: Score, write: Callable[..., str]) -> None:
    rules = {name: {"method": "eq", "ref": ref} for name, ref in (("title", "Song"), ("artist", "Singer"))}
    short = b"".join(
        name + len(data).to_bytes(3, "big") + data for name, data in ((b"TT2", b"\0Song"), (b"TP1", b"\0Singer"))
    )
    second = b"ID3\2\0\0" + bytes([0, 0, 0, len(short)]) + short + b"\xff\xfb sound"
    assert score("check_mp3_meta", write("2.mp3", second), rules) == 1
    first = b"\xff\xfb sound" + b"TAG" + b"Song".ljust(30, b"\0") + b"Singer".ljust(30) + bytes(65)
    assert score("check_mp3_meta", write("1.mp3", first), rules) == 1
    assert score("check_mp3_meta", write("1.mp3", first), {"title": {"method": "eq", "ref": "Other"}}) == 0
    both = tagged(3, frame("TIT2", b"\0Other", 3)) + first[-128:]
    assert (
        score(
            "check_mp3_meta",
            write("b.mp3", both),
            {"title": {"method": "eq", "ref": "Other"}, "artist": rules["artist"]},
        )
        == 1
    )


def test_without_ffmpeg_the_metrics_are_reported(monkeypatch: pytest.MonkeyPatch) -> None:
    import sys

    monkeypatch.setenv("PATH", "/nowhere")
    for name in ("media",):
        monkeypatch.delitem(sys.modules, f"paragent.osworld.evaluators.metrics.{name}", raising=False)
    found = missing({"func": ["compare_videos", "compare_audios"], "result": []})
    assert found == [
        "install the package `ffmpeg` (metric compare_videos: there is no ffmpeg here)",
        "install the package `ffmpeg` (metric compare_audios: there is no ffmpeg here)",
    ]
