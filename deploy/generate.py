"""Makes what follows from the program's tables: deploy/logs/onceward.mtail and deploy/dashboards/onceward.json from that of the stats line,
and the schema of the Helm chart's values from the schema of the configuration.

    generate.py [--check]      --check: changes nothing; status 1 when a file is not what this makes"""

import argparse
import json
import os
import re
import sys

DEPLOY = os.path.dirname(os.path.abspath(__file__))
TABLE = os.path.join(DEPLOY, "../include/onceward/core/stats.def")
ENDINGS = {"VALUE": [""], "COUNT": ["", "_total"], "LATENCY": ["_p50", "_p99", "_max"], "BATCH": ["_p50", "_max"]}
TEXTS = {"state", "state_detail", "paused_reason", "paused_detail", "depth_reason", "oldest_snapshot_reason"}  # values in words


def fields():
    """Name, kind and sentence of each field of the stats line."""
    with open(TABLE) as f:
        found = re.findall(r'^STAT\(\w+, "(\w+)", (\w+),\n\s+("(?:[^"\\]|\\.)*")', f.read(), re.M)
    return [(name, kind, json.loads(sentence)) for name, kind, sentence in found]


def states():
    with open(TABLE) as f:
        return re.findall(r'^STATE\(\w+, "(\w+)",', f.read(), re.M)


def keys(name, kind):
    return [name + ending for ending in ENDINGS[kind]]


# mtail

MTAIL = """\
# Metrics from Onceward's log (log.format onceward), for Prometheus: mtail --progs onceward.mtail --logs '/var/log/pods/*/onceward/*.log'
# Made by deploy/generate.py from the table of the stats line.
#
# Counters add up what each line says it grew by, so a restart does no harm. Gauges are those of the latest line; one that is not said for ten
# minutes is forgotten, so a pod that is gone leaves no value behind. pod is taken from kubelet's file names, and is empty elsewhere.

{declarations}

getfilename() =~ /^\\/var\\/log\\/pods\\/[^_\\/]+_(?P<pod>[^_\\/]+)_/ {{
  # kubelet's: the line stands behind time, stream and a flag
  /^[^{{]*\\{{"ts":"(?P<ts>\\d+-\\d+-\\d+T\\d+:\\d+:\\d+\\.\\d+)Z","level":"(?P<level>\\w+)","event":"(?P<event>\\w+)"/ {{
    strptime($ts, "2006-01-02T15:04:05.000")
    onceward_lines_total[$pod][$event][$level]++
    /"event":"stats",.*"queue":"(?P<queue>[^"]+)"/ {{
{in_pod}
    }}
  }}
}} else {{
  /^\\{{"ts":"(?P<ts>\\d+-\\d+-\\d+T\\d+:\\d+:\\d+\\.\\d+)Z","level":"(?P<level>\\w+)","event":"(?P<event>\\w+)"/ {{
    strptime($ts, "2006-01-02T15:04:05.000")
    onceward_lines_total[""][$event][$level]++
    /"event":"stats",.*"queue":"(?P<queue>[^"]+)"/ {{
{elsewhere}
    }}
  }}
}}
"""


def mtail_statements(pod):
    """What is done with a stats line."""
    out = [f"onceward_stats_seconds[{pod}][$queue] = timestamp()", f"del onceward_stats_seconds[{pod}][$queue] after 10m"]
    for state in states():
        out.append(f'onceward_state[{pod}][$queue]["{state}"] = 0')
    out.append(f'/"state":"(?P<state>\\w+)"/ {{\n  onceward_state[{pod}][$queue][$state] = 1\n}}')
    for name, kind, _ in fields():
        if name in TEXTS:
            continue
        for key in keys(name, kind):
            if key.endswith("_total"):
                continue
            number = r"-?\d+\.?\d*" if kind == "LATENCY" else r"-?\d+"
            target = f"onceward_{name}_total[{pod}][$queue] +=" if kind == "COUNT" else f"onceward_{key}[{pod}][$queue] ="
            value = "float($v)" if kind == "LATENCY" else "int($v)"
            body = f"  {target} {value}\n"
            if kind != "COUNT":
                body += f"  del onceward_{key}[{pod}][$queue] after 10m\n"
            out.append(f'/"{key}":(?P<v>{number})/ {{\n{body}}}')
    return "\n".join(out)


def mtail():
    declared = ["counter onceward_lines_total by pod, event, level", "gauge onceward_stats_seconds by pod, queue",
                "gauge onceward_state by pod, queue, state"]
    for name, kind, _ in fields():
        if name in TEXTS:
            continue
        if kind == "COUNT":
            declared.append(f"counter onceward_{name}_total by pod, queue")
        else:
            declared += [f"gauge onceward_{key} by pod, queue" for key in keys(name, kind)]

    def indented(text):
        return "\n".join("      " + line for line in text.split("\n"))
    return MTAIL.format(declarations="\n".join(declared), in_pod=indented(mtail_statements("$pod")), elsewhere=indented(mtail_statements('""')))


# The dashboard: Grafana, on Loki.

SOURCE = {"type": "loki", "uid": "${source}"}
PANELS = [  # title, unit, fields; a COUNT is shown as a rate
    ("Messages a second", "ops", ["received", "completed", "duplicates", "retried", "given_back", "dead"]),
    ("In the broker's queue", "short", ["depth"]),
    ("Held here", "short", ["in_flight", "limit", "parked", "held"]),
    ("The application's answers", "ms", ["forward_ms"]),
    ("From delivery to completion", "ms", ["end_to_end_ms"]),
    ("Paused for", "ms", ["paused_for_ms"]),
    ("Dead letters", "short", ["dead_letters"]),
    ("Oldest delivery that is held", "ms", ["oldest_unfinished_ms"]),
    ("Bytes", "bytes", ["held_bytes", "dead_letter_bytes"]),
    ("Oldest transaction of the database", "ms", ["oldest_snapshot_ms"]),
    ("Claims in a batch", "short", ["claim_batch"]),
    ("Reconnects, lines left out and dropped", "short", ["reconnects", "suppressed", "dropped_lines"]),
]


def stats(key):
    """The stats lines with this field as a label: with all of them each line would be a series of its own, and Loki answers 500 at most."""
    return f'{{container="onceward", namespace=~"$namespace"}} | json event, queue, {key} | event="stats" | queue=~"$queue"'


def query(key, kind):
    if kind == "COUNT":
        return f"sum by (queue) (sum_over_time({stats(key)} | unwrap {key} | __error__=\"\" [$__interval])) / ($__interval_ms / 1000)"
    return f"max by (queue) (max_over_time({stats(key)} | unwrap {key} | __error__=\"\" [$__interval]))"


def panel(number, title, kind, unit, targets, sentences):
    return {"id": number, "title": title, "type": kind, "datasource": SOURCE, "description": " ".join(sentences),
            "gridPos": {"h": 8, "w": 12, "x": 12 * (number % 2), "y": 8 * (number // 2)},
            "fieldConfig": {"defaults": {"unit": unit, "custom": {"spanNulls": 120000}}, "overrides": []},
            "options": {"legend": {"displayMode": "list"}},
            "targets": [{"refId": chr(65 + i), "datasource": SOURCE, "expr": expr, "legendFormat": legend, "queryType": "range"}
                        for i, (expr, legend) in enumerate(targets)]}


def dashboard():
    known = {name: (kind, sentence) for name, kind, sentence in fields()}
    shown = {name for _, _, names in PANELS for name in names}
    left = [name for name in known if name not in TEXTS | shown]
    if shown - set(known):
        sys.exit(f"generate.py: PANELS has {sorted(shown - set(known))}, which are no fields")
    panels = [panel(0, "State", "state-timeline", "none",
                    [(f"max by (queue, pod, state) (count_over_time({stats('state')} [$__interval]))", "{{queue}} {{pod}} {{state}}")],
                    [known["state"][1]])]
    for title, unit, names in PANELS + ([("Others", "short", left)] if left else []):
        targets = [(query(key, known[name][0]), "{{queue}} " + key) for name in names for key in keys(name, known[name][0])
                   if not key.endswith("_total")]
        panels.append(panel(len(panels), title, "timeseries", unit, targets, [f"{name}: {known[name][1]}" for name in names]))
    loud = '{container="onceward", namespace=~"$namespace"} | json | level=~"warning|error"'
    panels.append({"id": len(panels), "title": "Warnings and errors", "type": "logs", "datasource": SOURCE,
                   "gridPos": {"h": 12, "w": 24, "x": 0, "y": 8 * (len(panels) // 2 + 1)}, "options": {"showTime": True, "wrapLogMessage": True},
                   "targets": [{"refId": "A", "datasource": SOURCE, "expr": loud, "queryType": "range"}]})
    variables = [
        {"name": "source", "type": "datasource", "query": "loki", "label": "Loki"},
        {"name": "namespace", "type": "query", "datasource": SOURCE, "query": {"label": "namespace", "type": 1, "stream": '{container="onceward"}'},
         "includeAll": True, "allValue": ".*", "multi": True, "current": {"text": "All", "value": "$__all"}, "refresh": 2},
        {"name": "queue", "type": "textbox", "query": ".+", "current": {"text": ".+", "value": ".+"}},
    ]
    made = {"title": "Onceward", "uid": "onceward", "schemaVersion": 39, "tags": ["onceward"], "timezone": "utc", "refresh": "30s",
            "time": {"from": "now-1h", "to": "now"}, "templating": {"list": variables}, "panels": panels,
            "description": "Made by deploy/generate.py from the table of the stats line."}
    return json.dumps(made, indent=1) + "\n"


# Helm: the values of the chart, with the configuration's own schema in it.

def without_prose(schema):
    """What decides, without the descriptions: conf/README.md has them."""
    if isinstance(schema, list):
        return [without_prose(item) for item in schema]
    if not isinstance(schema, dict):
        return schema
    return {name: {key: without_prose(value) for key, value in value.items()} if name in ("properties", "$defs") else without_prose(value)
            for name, value in schema.items() if name not in ("description", "title", "default", "examples")}


def values_schema():
    with open(os.path.join(DEPLOY, "../conf/onceward.schema.json")) as f:
        config = json.load(f)
    config = without_prose(config)
    config.pop("$schema", None)
    identity = config.pop("$id", None)
    definitions = {name: config.pop(name) for name in ("$defs", "definitions") if name in config}
    name = {"type": "string", "minLength": 1}
    sidecar = {"type": "object", "required": ["image", "config"], "additionalProperties": False, "properties": {
        "image": name, "files": {"type": "array", "items": {"type": "object"}}, "graceSeconds": {"type": "integer", "minimum": 0}, "resources": {"type": "object"},
        "secrets": {"type": "object", "additionalProperties": False, "properties": {k: name for k in ("rabbitmq", "postgresql", "owner")}},
        "config": config, "global": {"type": "object"}}}  # Helm itself puts it there: a library of that name is included
    made = {"$schema": "https://json-schema.org/draft/2020-12/schema", "title": f"Values: an application with its sidecar ({identity or 'onceward'})",
            **definitions, "type": "object", "required": ["image", "onceward"], "additionalProperties": False, "properties": {
                "image": name, "replicas": {"type": "integer", "minimum": 0}, "port": {"type": "integer", "minimum": 1, "maximum": 65535},
                "databaseSecret": name, "onceward": sidecar, "global": {"type": "object"}}}
    return json.dumps(made, indent=1) + "\n"


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--check", action="store_true")
    options = parser.parse_args()
    status = 0
    for path, text in (("logs/onceward.mtail", mtail()), ("dashboards/onceward.json", dashboard()),
                       ("helm/service/values.schema.json", values_schema())):
        full = os.path.join(DEPLOY, path)
        if options.check:
            with open(full) as f:
                if f.read() != text:
                    print(f"deploy/{path} is not what deploy/generate.py makes: run it", file=sys.stderr)
                    status = 1
        else:
            with open(full, "w") as f:
                f.write(text)
    return status


if __name__ == "__main__":
    sys.exit(main())
