#!/usr/bin/python3
"""Draws timeline.svg: the life of one message as a sequence of calls, and the outcome of a crash at each point.

    deploy/pictures/timeline.py            writes the picture
    deploy/pictures/timeline.py --check    status 1 when the picture is not current"""

import os
import sys

PATH = os.path.join(os.path.dirname(os.path.abspath(__file__)), "timeline.svg")

LANES = ["RabbitMQ", "Onceward", "PostgreSQL", "Application"]
# from, to, label; or the outcome of a crash at this point
STEPS = [
    (0, 1, "deliver"),
    "The broker redelivers. Nothing has happened.",
    (1, 2, "claim: row with token"),
    "Redelivered. The claim is taken over when its window ends, or sooner.",
    (1, 3, "POST, Onceward-Token"),
    "Application crash: nothing is committed. The message is tried again.",
    (3, 2, "complete(token), own writes"),
    "Rolled back: neither the work nor the completion exists.",
    (3, 2, "COMMIT"),
    "Work and completion are both committed. A redelivery is only acked.",
    (3, 1, "204"),
    "The same: the row decides, not the answer.",
    (1, 2, "read the row: completed"),
    (1, 0, "ack"),
]
LEFT, STEP_X, TOP, STEP_Y, TEXT_X = 60, 178, 56, 32, 640
WIDTH = 1110


def escape(text):
    return text.replace("&", "&amp;").replace("<", "&lt;")


def draw():
    height = TOP + STEP_Y * (len(STEPS) + 1)
    out = [f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {height}" font-family="sans-serif" font-size="13">',
           '<style>.l{stroke:#888}.a{stroke:#1f5fa8;stroke-width:1.6;fill:none}.h{fill:#1f5fa8}.c{fill:#b3261e}.t{fill:#222}.n{fill:#555}'
           '@media(prefers-color-scheme:dark){.t{fill:#eee}.n{fill:#bbb}.c{fill:#ff8a80}.a{stroke:#8ab4f8}.h{fill:#8ab4f8}}</style>']
    x = [LEFT + STEP_X * i for i in range(len(LANES))]
    for i, name in enumerate(LANES):
        out.append(f'<text class="t" x="{x[i]}" y="22" text-anchor="middle" font-weight="bold">{name}</text>')
        out.append(f'<line class="l" x1="{x[i]}" y1="30" x2="{x[i]}" y2="{height - 8}"/>')
    out.append(f'<text class="c" x="{TEXT_X}" y="22" font-weight="bold">A crash of any process here leads to:</text>')
    for n, step in enumerate(STEPS):
        y = TOP + STEP_Y * n
        if isinstance(step, str):
            out.append(f'<line class="l" stroke-dasharray="3 4" x1="{x[0]}" y1="{y}" x2="{TEXT_X - 24}" y2="{y}"/>')
            out.append(f'<text class="c" x="{TEXT_X - 18}" y="{y + 5}">✕</text>')
            out.append(f'<text class="n" x="{TEXT_X}" y="{y + 4}">{escape(step)}</text>')
            continue
        a, b, label = step
        sign = 1 if b > a else -1
        out.append(f'<path class="a" d="M{x[a]} {y}H{x[b] - 7 * sign}"/>')
        out.append(f'<path class="h" d="M{x[b]} {y}l{-9 * sign} -4v8z"/>')
        middle = (x[a] + x[b]) // 2
        out.append(f'<text class="t" x="{middle}" y="{y - 6}" text-anchor="middle">{escape(label)}</text>')
    return "\n".join(out + ["</svg>", ""])


if __name__ == "__main__":
    if sys.argv[1:] == ["--check"]:
        with open(PATH, encoding="utf-8") as f:
            sys.exit(f.read() != draw())
    with open(PATH, "w", encoding="utf-8") as f:
        f.write(draw())
