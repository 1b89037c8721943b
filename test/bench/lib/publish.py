"""Writes the figures of a run into test/README.md, the short ones into README.md, between their markers, and the plots beside the bench."""

import os
import re

from . import faults, peer_groups, plot, targets

# group, key, what the picture says
SHOWN = ((targets.DRAIN, "rate", "Messages a second"), (targets.DRAIN, "cpu_us.consumer", "CPU of the consumer, µs a message"),
         (targets.DRAIN, "rss_peak", "Anonymous memory of the consumer, MiB"),
         (targets.STEADY, "p50_ms", "Median time from publish to POST at 1,000 messages a second"),
         (targets.STEADY, "p99_ms", "p99 from publish to POST at 1,000 messages a second"))
NAMES = {"onceward": "Onceward, over TCP", "onceward-unix": "Onceward, over Unix sockets", "node": "Node (amqplib, pg, undici)",
         "python": "Python (pika, psycopg2), 8 processes", "forwards-only": "bound: a C program that forwards and acks, without an inbox",
         "acks-only": "bound: a C program that only acks"}
COLUMNS = (("rate", "messages/s", "{:,.0f}", 1.0), ("cpu_us.consumer", "consumer's CPU, µs a message", "{:.1f}", 1.0),
           ("cpu_us.database", "database's, µs", "{:.1f}", 1.0), ("rss_peak", "anonymous memory, MiB", "{:.1f}", 1 / (1 << 20)))
BEGIN, END = "<!-- figures -->\n", "<!-- /figures -->"
SHORT_BEGIN, SHORT_END = "<!-- short figures -->\n", "<!-- /short figures -->"
PEERS_BEGIN, PEERS_END = "<!-- peers -->\n", "<!-- /peers -->"
SHORT_PEERS_BEGIN, SHORT_PEERS_END = "<!-- short peers -->\n", "<!-- /short peers -->"
SHORT = ("onceward", "node", "python", "forwards-only")  # the rows that README.md has


def row(cells):
    return "| " + " | ".join(cells) + " |"


def text(document, plots):
    """plots: their folder, as the page names it."""
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
    lines += ["", "Targets and measurements:", "", row(["", "measured", "target", "reached"]), "|---|---|---|---|"]
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


def short(made):
    """The table of README.md: rows of the other page's, with its revision and date in the first cell."""
    wanted = [f"| {NAMES[label]} |" for label in SHORT]
    table = [line for line in made.split("\n") if line.startswith("|")]
    table[0] = table[0].replace("|  |", f"| {re.search(r'revision [0-9a-f]+, [0-9-]+', made)[0]} |", 1)
    return "\n".join([*table[:2], *(line for line in table if any(line.startswith(w) for w in wanted))]) + "\n"


def replace(path, begin, end, make):
    """make: from the present text between the markers to the new one."""
    with open(path, encoding="utf-8") as f:
        page = f.read()
    found = re.search(re.escape(begin) + "(.*?)" + re.escape(end), page, re.S)
    if not found:
        raise SystemExit(f"{path} has no place for figures: {begin.strip()}")
    with open(path, "w", encoding="utf-8") as f:
        f.write(page.replace(found.group(0), begin + make(found.group(1)) + end))


def publish_peers(document, root):
    machine, costs, ends = document["machine"], *peer_groups.tables(document)
    made = (f"`test/bench/run peers` (revision {document['options']['revision']}, {document['made'][:10]}), {machine['cores']} cores ({machine['cpu']}) "
            f"that all share.\n{peer_groups.COSTS_READ}\n\n{costs}\nConsequences of faults, of {faults.MESSAGES:,} messages (of several runs: each).\n\n"
            f"{peer_groups.ENDS_READ}\n\n{ends}\n"
            f"How each was configured:\n\n{peer_groups.configured(document)}")
    page = os.path.join(root, "test", "README.md")
    replace(page, PEERS_BEGIN, PEERS_END, lambda _: made)
    replace(page, SHORT_PEERS_BEGIN, SHORT_PEERS_END, lambda _: "\n".join(peer_groups.short(document)) + "\n")
    return [page]


def publish(document, root):
    """Answers the files written. What other commands have measured stays: it begins with the line of deploy/demo."""
    if any(g["scenario"] == "peers" for g in document["groups"]):
        return publish_peers(document, root)
    bench = os.path.join("bench", "plots")
    written = plot.write_all(os.path.join(root, "test", bench), shown(document))
    made = text(document, bench)

    def whole(stands):
        kept = re.search(r"^`deploy/demo`.*\Z", stands, re.S | re.M)
        return made + ("\n" + kept.group(0) if kept else "")

    pages = [os.path.join(root, "test", "README.md"), os.path.join(root, "README.md")]
    replace(pages[0], BEGIN, END, whole)
    replace(pages[1], SHORT_BEGIN, SHORT_END, lambda _: short(made))
    return [*pages, *written]
