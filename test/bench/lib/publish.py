"""Writes the figures of a run into the README, between its markers, and the plots that it shows beside the bench."""

import os
import re

from . import plot, targets

# group, key, what the picture says
SHOWN = ((targets.DRAIN, "rate", "Messages a second"), (targets.DRAIN, "cpu_us.consumer", "CPU of the consumer, µs a message"),
         (targets.DRAIN, "rss_peak", "Anonymous memory of the consumer, MiB"),
         (targets.STEADY, "p50_ms", "Median time from publish to POST at 1,000 messages a second"),
         (targets.STEADY, "p99_ms", "99th percentile of the time from publish to POST at 1,000 messages a second"))
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
             f"({machine['cpu']}) that",
             f"broker, database, application and consumer share; medians of {options['rounds']} interleaved rounds. A backlog of "
             f"{options['messages']:,} messages of 256",
             "bytes in a quorum queue, `completion: response`, application `return 204`, concurrency 64, prefetch 1,024. The Node and Python",
             "consumers are the textbook inbox (insert on conflict, POST, update, ack), with pools, prepared statements and keep-alive.", "",
             row(["", *(title for _, title, _, _ in COLUMNS)]), "|---" * (len(COLUMNS) + 1) + "|"]
    for entry in figures.groups.get(targets.DRAIN, {"entries": []})["entries"]:
        cells = []
        for key, _, form, factor in COLUMNS:
            value = figures.value(targets.DRAIN, entry["label"], key, factor)
            cells.append(form.format(value) if value is not None else "")
        lines.append(row([NAMES.get(entry["label"], entry["label"]), *cells]))
    for title, key, says in SHOWN:
        if title in figures.groups:
            lines += ["", f"![{says}]({plots}/{plot.name(figures.groups[title], key)})"]
    lines += ["", "What is aimed at, and what was measured:", "", row(["", "measured", "target", "reached"]), "|---|---|---|---|"]
    lines += [row(cells) for cells in targets.verdicts(document)]
    return "\n".join(lines) + "\n"


def shown(document):
    """The groups of the pictures. Who only acks is so fast that nothing else could be told apart beside it."""
    keys = {}
    for title, key, _ in SHOWN:
        keys.setdefault(title, []).append(key)
    return {"groups": [dict(g, drawn=[d for d in g["drawn"] if d[0] in keys[g["title"]]],
                            entries=[e for e in g["entries"] if e["label"] != "acks-only"])
                       for g in document["groups"] if g["title"] in keys]}


def publish(document, root):
    """Answers the files written. What other commands have measured stays: it begins with the line of deploy/demo."""
    plots = os.path.join("test", "bench", "plots")
    written = plot.write_all(os.path.join(root, plots), shown(document))
    path = os.path.join(root, "README.md")
    with open(path, encoding="utf-8") as f:
        readme = f.read()
    found = re.search(re.escape(BEGIN) + "(.*?)" + re.escape(END), readme, re.S)
    if not found:
        raise SystemExit(f"{path} has no place for figures: {BEGIN.strip()}")
    kept = re.search(r"^`deploy/demo`.*\Z", found.group(1), re.S | re.M)
    made = text(document, plots) + ("\n" + kept.group(0) if kept else "")
    with open(path, "w", encoding="utf-8") as f:
        f.write(readme.replace(found.group(0), BEGIN + made + END))
    return [path, *written]
