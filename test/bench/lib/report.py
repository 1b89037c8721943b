"""Figures of several rounds made into medians, ratios within a round, tables and JSON."""

import json
import os
import platform
import statistics
import time

MIB = ("rss_peak", "rss_idle", "rss_file")


def flat(result):
    out = {}
    for key, value in result.items():
        if isinstance(value, dict):
            out.update({f"{key}.{k}": v for k, v in value.items()})
        elif key != "faults":
            out[key] = value
    return out


class Series:
    """The rounds of one group: {label: [figures of a round]}."""

    def __init__(self, scenario, group, earlier=None):
        """earlier: the document of a run to which this one adds."""
        self.scenario, self.group = scenario, group
        self.rounds = {label: [] for label, _ in group.entries}
        self.faults = []
        for before in (earlier or {}).get("groups", []):
            if before["title"] == group.title:
                self.rounds = {**{e["label"]: list(e["rounds"]) for e in before["entries"]},
                               **{label: [] for label in self.rounds if label not in [e["label"] for e in before["entries"]]}}
                self.faults = list(before["faults"])

    def add(self, label, result):
        self.rounds[label].append(result)
        self.faults += [f"{label}: {fault}" for fault in (result or {}).get("faults", [])]

    def medians(self, label):
        found = [flat(r) for r in self.rounds[label] if r]
        keys = {k for r in found for k in r}
        out = {}
        for key in keys:
            values = [r[key] for r in found if isinstance(r.get(key), (int, float))]
            if values:
                out[key] = statistics.median(values)
        ratio = self.ratio(label)
        if ratio is not None:
            out["ratio"] = ratio
        return out

    def ratio(self, label, key="rate"):
        """The median over the rounds of: this one's rate to that of the reference in the same round."""
        pairs = zip(self.rounds[label], self.rounds.get(self.group.reference, []))
        ratios = [a[key] / b[key] for a, b in pairs if a and b and a.get(key) and b.get(key)]
        return statistics.median(ratios) if ratios else None

    def table(self):
        columns = self.group.columns
        rows = [["", *(title for _, title, _ in columns)]]
        for label, _ in self.group.entries:
            m = self.medians(label)
            rows.append([label, *(number(m.get(key), digits, key) for key, _, digits in columns)])
        widths = [max(len(row[i]) for row in rows) for i in range(len(rows[0]))]
        lines = [self.group.title]
        for row in rows:
            lines.append("  " + row[0].ljust(widths[0]) + "".join("  " + cell.rjust(w) for cell, w in zip(row[1:], widths[1:])))
        lines += [f"  ! {fault}" for fault in self.faults]
        return "\n".join(lines)

    def document(self):
        return {"scenario": self.scenario, "title": self.group.title, "reference": self.group.reference,
                "drawn": list(self.group.drawn),
                "entries": [{"label": label, "median": self.medians(label), "rounds": self.rounds[label]}
                            for label in self.rounds], "faults": self.faults}


def number(value, digits, key=""):
    if value is None:
        return "-"
    if key in MIB:
        value /= 1 << 20
    return f"{value:,.{digits}f}"


def machine():
    model = "unknown"
    with open("/proc/cpuinfo") as f:
        for line in f:
            if line.startswith("model name"):
                model = line.split(":", 1)[1].strip()
                break
    return {"cpu": model, "cores": os.cpu_count(), "kernel": platform.release(),
            "memory_mib": os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE") >> 20}


def read(path):
    if not os.path.exists(path):
        return None
    with open(path, encoding="utf-8") as f:
        return json.load(f)


def write(path, all_series, options, earlier=None):
    """earlier: its groups that were not run now stay."""
    now = {s.group.title for s in all_series}
    kept = [g for g in (earlier or {}).get("groups", []) if g["title"] not in now]
    document = {"made": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()), "machine": machine(), "options": options,
                "groups": kept + [s.document() for s in all_series]}
    with open(path, "w") as f:
        json.dump(document, f, indent=1)
        f.write("\n")
    return document
