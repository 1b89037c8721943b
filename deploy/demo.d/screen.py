"""What the demo shows: lines that stay, and below them a view that is drawn anew; and a recording of both.

A recording is an asciicast (version 2, for asciinema and its players) or an SVG that moves by itself, whatever the name of the file ends in."""

import json
import shutil
import sys
import time
import xml.sax.saxutils

WIDTH, HEIGHT = 118, 30
FRAME = 0.5  # seconds between two of a recording, at least
FRAMES = 60  # of a recording, at most: a slow machine takes longer for the same
PAUSE = 1.5  # seconds without anything new, at most
LAST = 6.0  # seconds that the end stays
FONT, ROW, MARGIN = 8.4, 18, 14


class Screen:
    def __init__(self, watch=False, record=None):
        self.watch, self.record = watch, record
        self.is_terminal = sys.stdout.isatty()
        self.lines, self.view, self.frames = [], [], []
        self.n_drawn = 0
        self.start = self.told = time.monotonic()

    def say(self, text):
        self._wipe()
        print(text, flush=True)
        self.lines += text.split("\n")
        self.view = []
        self._frame(True)

    def show(self, view, last=False):
        """The view, in place of the one before. Where nothing can be drawn over, every two seconds, below it."""
        self.view = view
        if self.is_terminal:
            self._wipe()
            width = shutil.get_terminal_size().columns - 1
            sys.stdout.write("".join(line[:width] + "\n" for line in view))
            self.n_drawn = len(view)
        elif last or time.monotonic() - self.told >= 2:
            self.told = time.monotonic()
            print("\n".join(view), flush=True)
        sys.stdout.flush()
        self._frame(last)
        if last:
            self.lines += view
            self.view, self.n_drawn = [], 0

    def _wipe(self):
        if self.n_drawn:
            sys.stdout.write(f"\x1b[{self.n_drawn}A\x1b[J")
            self.n_drawn = 0

    # the recording

    def _frame(self, anyway):
        now = time.monotonic() - self.start
        if not self.record or (not anyway and self.frames and now - self.frames[-1][0] < FRAME):
            return
        seen = [line[:WIDTH] for line in self.lines + self.view][-HEIGHT:]
        if not self.frames or self.frames[-1][1] != seen:
            self.frames.append((now, seen))

    def save(self):
        if not self.record or not self.frames:
            return
        frames = thinned(shortened(self.frames))
        with open(self.record, "w", encoding="utf-8") as f:
            f.write(svg(frames) if self.record.endswith(".svg") else asciicast(frames))
        print(f"{self.record}: {len(frames)} frames, {frames[-1][0]:.0f} s")


def shortened(frames):
    """Without the time in which nothing is to be seen, as while the servers start."""
    out, cut = [], frames[0][0]
    for i, (at, lines) in enumerate(frames):
        if i:
            cut += max(at - frames[i - 1][0] - PAUSE, 0)
        out.append((at - cut, lines))
    return out


def thinned(frames):
    """Every n-th, and the last one."""
    step = -(-len(frames) // FRAMES)
    return frames[:-1:step] + frames[-1:]


def asciicast(frames):
    out = [json.dumps({"version": 2, "width": WIDTH, "height": HEIGHT, "title": "Onceward: deploy/demo"})]
    for at, lines in frames:
        out.append(json.dumps([round(at, 3), "o", "\x1b[H\x1b[2J" + "\r\n".join(lines)]))
    return "\n".join(out) + "\n"


def svg(frames):
    """Every frame is a group that is visible in its share of the time. Without animations the last one is seen."""
    total = frames[-1][0] + LAST
    wide, high = round(WIDTH * FONT + 2 * MARGIN), HEIGHT * ROW + 2 * MARGIN
    style, body = [], []
    for i, (at, lines) in enumerate(frames):
        begin = 100 * at / total if i else 0
        end = 100 * frames[i + 1][0] / total if i + 1 < len(frames) else 100
        style.append(f"@keyframes k{i}{{0%,{max(begin - 0.001, 0):.3f}%{{opacity:{0 if i else 1}}}{begin:.3f}%,{max(end - 0.001, begin):.3f}%{{opacity:1}}"
                     + (f"{end:.3f}%,100%{{opacity:0}}" if end < 100 else "100%{opacity:1}") + "}"
                     + f"#f{i}{{animation:k{i} {total:.2f}s infinite}}")
        rows = "".join(f'<text x="{MARGIN}" y="{MARGIN + (row + 1) * ROW - 5}">{xml.sax.saxutils.escape(line)}</text>'
                       for row, line in enumerate(lines) if line.strip())
        body.append(f'<g id="f{i}" opacity="{1 if i + 1 == len(frames) else 0}">{rows}</g>')
    return (f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {wide} {high}" width="{wide}" height="{high}">\n'
            f"<title>Onceward: deploy/demo</title>\n<style>text{{font:14px ui-monospace,Menlo,Consolas,monospace;fill:#d8dee9;white-space:pre}}"
            + "".join(style) + f'</style>\n<rect width="{wide}" height="{high}" rx="8" fill="#1e222a"/>\n' + "\n".join(body) + "\n</svg>\n")
