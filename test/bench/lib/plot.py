"""Plots of the groups as SVG, without a library: bars of the rates, with the spread over the rounds."""

import os
import re
import statistics
from xml.sax.saxutils import escape

WIDTH, ROW, LEFT, RIGHT, TOP = 720, 26, 190, 120, 44
OURS, THEIRS, BOUND = "#2f6fb2", "#b0653a", "#9aa3ab"


def colour(label):
    if label.startswith("onceward"):
        return OURS
    return BOUND if "only" in label else THEIRS


def bars(title, unit, rows):
    """rows: (label, median, values)."""
    height = TOP + ROW * len(rows) + 16
    most = max([v for _, _, values in rows for v in values] + [1e-9])
    scale = (WIDTH - LEFT - RIGHT) / most
    out = [f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {height}" font-family="sans-serif" font-size="13" fill="#1a1a1a">',
           f'<rect width="{WIDTH}" height="{height}" fill="#ffffff"/>',
           f'<text x="12" y="22" font-size="15" font-weight="bold">{escape(title)}</text>',
           f'<text x="{WIDTH - 12}" y="22" text-anchor="end" fill="#666">{escape(unit)}</text>']
    for i, (label, median, values) in enumerate(rows):
        y = TOP + i * ROW
        out.append(f'<text x="{LEFT - 8}" y="{y + 15}" text-anchor="end">{escape(label)}</text>')
        out.append(f'<rect x="{LEFT}" y="{y + 2}" width="{median * scale:.1f}" height="{ROW - 8}" fill="{colour(label)}"/>')
        if len(values) > 1:
            out.append(f'<path d="M{LEFT + min(values) * scale:.1f} {y + 11}H{LEFT + max(values) * scale:.1f}" stroke="#222"/>')
        digits = 0 if median >= 100 else 1 if median >= 10 else 2
        out.append(f'<text x="{LEFT + max(values) * scale + 6:.1f}" y="{y + 15}">{median:,.{digits}f}</text>')
    return "\n".join(out + ["</svg>", ""])


LINES = ("#2f6fb2", "#5aa02c", "#8a5fb0", "#b0653a", "#c9a227", "#9aa3ab")


def lines(title, unit, levels, series):
    """series: {label: a value from 0 to 1 for each level}. The levels stand side by side, however far apart they are."""
    width, height, left, top = 560, 240, 60, TOP
    x = lambda i: left + i * width / (len(levels) - 1)
    y = lambda value: top + height * (1 - min(value, 1.1) / 1.1)
    out = [f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {top + height + 56}" font-family="sans-serif" font-size="13" fill="#1a1a1a">',
           f'<rect width="{WIDTH}" height="{top + height + 56}" fill="#ffffff"/>',
           f'<text x="12" y="22" font-size="15" font-weight="bold">{escape(title)}</text>']
    for share in (0, 0.25, 0.5, 0.75, 1):
        out.append(f'<path d="M{left} {y(share):.1f}H{left + width}" stroke="#ddd"/>')
        out.append(f'<text x="{left - 8}" y="{y(share) + 4:.1f}" text-anchor="end">{share:g}</text>')
    for i, level in enumerate(levels):
        out.append(f'<text x="{x(i):.1f}" y="{top + height + 18}" text-anchor="middle">{level:g}</text>')
    out.append(f'<text x="{left + width / 2}" y="{top + height + 42}" text-anchor="middle" fill="#666">{escape(unit)}</text>')
    for n, (label, values) in enumerate(series.items()):
        points = " ".join(f"{x(i):.1f},{y(value):.1f}" for i, value in enumerate(values))
        out.append(f'<polyline points="{points}" fill="none" stroke="{LINES[n % len(LINES)]}" stroke-width="2"/>')
        out.append(f'<text x="{left + width + 14}" y="{top + 20 + 20 * n}" fill="{LINES[n % len(LINES)]}">{escape(label)}</text>')
    return "\n".join(out + ["</svg>", ""])


def dig(result, key):
    for part in key.split("."):
        result = (result or {}).get(part)
    return result


def group_rows(group, key, factor=1.0):
    rows = []
    for entry in group["entries"]:
        values = [v * factor for v in (dig(r, key) for r in entry["rounds"]) if isinstance(v, (int, float))]
        if values:
            rows.append((entry["label"], statistics.median(values), values))
    return rows


def write_all(folder, document):
    os.makedirs(folder, exist_ok=True)
    written = []
    for group in document["groups"]:
        for key, unit, factor in group["drawn"]:
            rows = group_rows(group, key, factor)
            if not rows:
                continue
            path = os.path.join(folder, name(group, key))
            with open(path, "w") as f:
                f.write(bars(group["title"], unit, rows))
            written.append(path)
    return written


def name(group, key):
    """The file of a plot."""
    words = re.sub(r"[^a-z0-9]+", "-", re.sub(r"\(.*?\)", "", group["title"]).replace(",000", "000").lower()).strip("-")
    return words + ("" if key == "rate" else "-" + key.split(".")[0].replace("_", "-")) + ".svg"
