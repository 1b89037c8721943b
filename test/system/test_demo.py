"""The output and the recording of the demo: deploy/demo.d/screen.py and watch.py. The demo itself is run by people."""

import json
import os
import re
import sys
import xml.etree.ElementTree

from rig import pages

sys.path.insert(0, os.path.join(pages.ROOT, "deploy", "demo.d"))

import screen  # noqa: E402
import watch  # noqa: E402

FRAMES = [(0.0, ["Starting <it> & all"]), (1.0, ["1 s", "  booked 10"]), (1.5, ["2 s", "  booked 20"])]


def shares(text):
    """When each frame is seen, in percent."""
    return [(float(a), float(b)) for a, b in re.findall(r"@keyframes k\d+\{.*?\{opacity:\d\}([\d.]+)%,([\d.]+)%\{opacity:1\}", text)]


def test_a_recording_as_svg_shows_one_frame_at_a_time():
    text = screen.svg(FRAMES)
    groups = [e for e in xml.etree.ElementTree.fromstring(text).iter() if e.tag.endswith("}g")]
    assert [[t.text for t in g] for g in groups] == [lines for _, lines in FRAMES]
    assert [g.get("opacity") for g in groups] == ["0", "0", "1"]  # where nothing moves, the end is seen
    seen = shares(text)
    total = FRAMES[-1][0] + screen.LAST
    assert len(seen) == 3 and all(abs(begin - 100 * at / total) < 0.01 for (begin, _), (at, _) in zip(seen, FRAMES))
    assert all(end <= begin for (_, end), (begin, _) in zip(seen, seen[1:]))


def test_a_recording_as_asciicast_is_one():
    head, *rest = [json.loads(line) for line in screen.asciicast(FRAMES).splitlines()]
    assert head["version"] == 2 and head["width"] > 80 and [at for at, _, _ in rest] == [0.0, 1.0, 1.5]
    assert all(kind == "o" for _, kind, _ in rest) and rest[-1][2].endswith("2 s\r\n  booked 20")


def test_a_recording_has_no_long_pauses():
    assert [at for at, _ in screen.shortened([(10, []), (11, []), (31, []), (32, [])])] == [0, 1, 1 + screen.PAUSE, 2 + screen.PAUSE]


def test_a_long_recording_is_thinned_and_keeps_its_end():
    frames = [(i, [str(i)]) for i in range(150)]
    thin = screen.thinned(frames)
    assert thin[0] == frames[0] and thin[-1] == frames[-1] and len(thin) <= screen.FRAMES + 1 and screen.thinned(frames[:3]) == frames[:3]


def test_the_screen_keeps_what_was_said_and_the_last_view(capsys, tmp_path):
    shown = screen.Screen(record=str(tmp_path / "a.cast"))
    shown.say("begin")
    shown.show(["1"])
    shown.show(["2"], last=True)
    shown.say("end")
    shown.save()
    assert shown.frames[-1][1] == ["begin", "2", "end"]
    assert json.loads((tmp_path / "a.cast").read_text().splitlines()[-1])[2].endswith("begin\r\n2\r\nend")
    assert capsys.readouterr().out.split("\n")[:3] == ["begin", "2", "end"]


def test_the_view_sums_up_the_logs(tmp_path):
    stats = {"event": "stats", "ts": "2026-01-01T00:00:00.000Z", "state": "consuming", "completed": 20, "in_flight": 3, "parked": 1,
             "retried_total": 4, "duplicates_total": 5, "dead_total": 0, "forward_ms_p50": 1.25, "forward_ms_p99": None}
    paused = {"event": "paused", "ts": "2026-01-01T00:00:01.500Z", "reason": "overloaded"}
    taken = [{"event": "taken_over", "ts": f"2026-01-01T00:00:00.{i}00Z", "message_id": f"m{i}"} for i in range(3)]
    (tmp_path / "a").write_text("".join(json.dumps(e) + "\n" for e in [stats, *taken, stats, paused]) + '{"event": "sta')  # killed in the middle
    lines = watch.log_view(lambda name: str(tmp_path / name), ["a", "b"])
    assert lines[0].split() == "sidecar state done/s at work held retried duplicates dead p50 ms p99 ms".split()
    assert lines[1].split() == "a consuming 40 3 1 4 5 0 1.2 -".split() and lines[2].split()[:2] == ["b", "starting"]
    assert lines[-2:] == ["00:00:00.200  a  taken_over    m2  (3 times)", "00:00:01.500  a  paused        overloaded"]
