"""Writes the figures of a run into the README, between its markers, and the plots that it shows beside the bench."""

import os
import re

from . import plot, targets

SHOWN = ((targets.DRAIN, "rate"), (targets.DRAIN, "cpu_us.consumer"), (targets.DRAIN, "rss_peak"), (targets.STEADY, "p50_ms"),
         (targets.STEADY, "p99_ms"))
NAMES = {"onceward": "Onceward, over TCP", "onceward-unix": "Onceward, over Unix sockets", "node": "Node (amqplib, pg, undici)",
         "python": "Python (pika, psycopg2), 8 processes", "forwards-only": "bound: a C program that forwards and acks, without an inbox",
         "acks-only": "bound: a C program that only acks"}
COLUMNS = (("rate", "messages/s", "{:,.0f}", 1.0), ("cpu_us.consumer", "CPU of the consumer, µs a message", "{:.1f}", 1.0),
           ("cpu_us.database", "of the database, µs", "{:.1f}", 1.0), ("rss_peak", "anonymous memory, MiB", "{:.1f}", 1 / (1 << 20)))
BEGIN, END = "<!-- figures -->\n", "<!-- /figures -->"


def row(cells):
    return "| " + " | ".join(cells) + " |"


def text(document, plots):
    """plots: their folder, as the README names it."""
    figures, machine, options = targets.Figures(document), document["machine"], document["options"]
    lines = [f"`test/bench/run --targets` (revision {options['revision']}, {document['made'][:10]}): {machine['cores']} cores "
             f"({machine['cpu']}) that broker, database, application and consumer share; medians of {options['rounds']} interleaved rounds.",
             "", f"A backlog of {options['messages']:,} messages of 256 bytes in a quorum queue, `completion: response`, application "
             "`return 204`, concurrency 64, prefetch 1,024. The Node and Python consumers are the textbook inbox (insert on conflict, POST, "
             "update, ack), with pools, prepared statements and keep-alive.", "",
             row(["", *(title for _, title, _, _ in COLUMNS)]), "|---" * (len(COLUMNS) + 1) + "|"]
    for entry in figures.groups.get(targets.DRAIN, {"entries": []})["entries"]:
        cells = []
        for key, _, form, factor in COLUMNS:
            value = figures.value(targets.DRAIN, entry["label"], key, factor)
            cells.append(form.format(value) if value is not None else "")
        lines.append(row([NAMES.get(entry["label"], entry["label"]), *cells]))
    for title, key in SHOWN:
        group = figures.groups.get(title)
        if group and plot.group_rows(group, key):
            lines += ["", f"![{title}: {key}]({plots}/{plot.name(group, key)})"]
    lines += ["", "What is aimed at, and what was measured:", "", row(["", "measured", "target", "reached"]), "|---|---|---|---|"]
    lines += [row(cells) for cells in targets.verdicts(document)]
    return "\n".join(lines) + "\n"


def publish(document, root):
    """Answers the files written. The lines of other commands stay: they stand behind a blank line after the last table."""
    plots = os.path.join("test", "bench", "plots")
    written = plot.write_all(os.path.join(root, plots), {"groups": [g for g in document["groups"]]})
    path = os.path.join(root, "README.md")
    with open(path, encoding="utf-8") as f:
        readme = f.read()
    found = re.search(re.escape(BEGIN) + "(.*?)" + re.escape(END), readme, re.S)
    if not found:
        raise SystemExit(f"{path} has no place for figures: {BEGIN.strip()}")
    kept = re.search(r"^`deploy/demo`.*\Z", found.group(1), re.S | re.M)  # what others measure
    made = text(document, plots) + ("\n" + kept.group(0) if kept else "")
    with open(path, "w", encoding="utf-8") as f:
        f.write(readme.replace(found.group(0), BEGIN + made + END))
    return [path, *written]
