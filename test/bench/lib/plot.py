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
